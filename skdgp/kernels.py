"""Kernels that scikit-learn has not, for compositions with those that it has.

Regressors and classifiers take scikit-learn's own kernel objects, such as
``1.0 * RBF([1.0, 1.0]) + ExpSineSquared(periodicity=7.0)``.
"""

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process.kernels import Kernel

__all__ = ["Select"]


class Select(Kernel):
    """A kernel of some of the features: sums of such kernels are additive models.

    It composes with scikit-learn's kernels, and ``GaussianProcessRegressor`` takes it too.

    Parameters
    ----------
    kernel : Kernel
        Of the chosen features.
    columns : int, str, or sequence of them
        Which features, by number or by the name that they have in the data frame of ``fit``. Names are for the
        estimators of this package.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skdgp.kernels import Select
    >>> kernel = Select(RBF(1.0), 0) + Select(RBF(2.0), [1, 2])
    >>> kernel(np.zeros((2, 3))).shape
    (2, 2)
    >>> kernel
    Select(RBF(length_scale=1), 0) + Select(RBF(length_scale=2), [1, 2])
    """

    def __init__(self, kernel, columns):
        self.kernel = kernel
        self.columns = columns

    def get_params(self, deep=True):
        """Parameters, and with ``deep`` those of the kernel, as ``kernel__...``."""
        params = {"kernel": self.kernel, "columns": self.columns}
        if deep:
            params |= {f"kernel__{name}": value for name, value in self.kernel.get_params().items()}
        return params

    @property
    def hyperparameters(self):
        """Those of the kernel, as ``kernel__...``."""
        return [
            type(each)(f"kernel__{each.name}", each.value_type, each.bounds, each.n_elements)
            for each in self.kernel.hyperparameters
        ]

    @property
    def theta(self):
        """Logarithms of the kernel's numbers that are not fixed."""
        return self.kernel.theta

    @theta.setter
    def theta(self, theta):
        self.kernel.theta = theta

    @property
    def bounds(self):
        """Of these logarithms."""
        return self.kernel.bounds

    def clone_with_theta(self, theta):
        """A copy with other numbers."""
        copy = clone(self)
        copy.theta = theta
        return copy

    def __eq__(self, other):
        return type(self) is type(other) and self.kernel == other.kernel and self.columns == other.columns

    __hash__ = Kernel.__hash__

    def __call__(self, X, Y=None, eval_gradient=False):
        """Covariances of rows, and their gradients; see scikit-learn."""
        chosen = None if Y is None else self._of(Y)
        return self.kernel(self._of(X), chosen, eval_gradient=eval_gradient)

    def diag(self, X):
        """Variances of rows."""
        return self.kernel.diag(self._of(X))

    def is_stationary(self):
        """Whether the kernel is."""
        return self.kernel.is_stationary()

    def __repr__(self):
        return f"Select({self.kernel!r}, {self.columns!r})"

    def _of(self, X):
        names = np.atleast_1d(self.columns)
        if names.dtype.kind not in "iu":
            raise ValueError(f"columns={self.columns!r} are names, and an array has numbers: give these.")
        return np.atleast_2d(X)[:, names]
