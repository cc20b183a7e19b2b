"""What all estimators have in common once they are fitted."""

from inspect import isfunction, unwrap

from .._sklearn import CallbackSupportMixin
from ..methods.options import check_removed
from . import _functions, _predicting
from ._fitted import fitted
from ._importances import feature_importances
from ._kernels import learnt_kernels
from ._state import from_state, to_state


def nameless(cls):
    """The class, with methods whose errors about arguments name no class, since users never meet this one."""
    for name, method in vars(cls).items():
        if isfunction(method):
            unwrap(method).__qualname__ = name  # of the function without its decorators, which take all arguments
    return cls


class Shell(CallbackSupportMixin):
    """The fitted models of a regressor or classifier: attributes, functions, and what is written to files."""

    module_ = property(lambda self: fitted(self).members, doc="The members of the ensemble.")
    device_ = property(lambda self: fitted(self).device, doc="Where the members are.")
    base_weight_ = property(
        lambda self: fitted(self).base_weight, doc="Weight of the base near rows that were learnt from."
    )
    kernel_ = property(learnt_kernels)
    feature_importances_ = property(feature_importances)
    predict_layers = _predicting.predict_layers
    sample_functions = _functions.sample_functions
    sample_layers = _functions.sample_layers

    def set_params(self, **params):
        """Set parameters by name; errors say what to write in place of removed ones."""
        check_removed(params, type(self), ValueError)
        return super().set_params(**params)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self):
        """State without objects of torch: it opens with other versions of torch, and on machines without the device."""
        return to_state(super().__getstate__())

    def __setstate__(self, state):
        super().__setstate__(from_state(state, type(self)))
