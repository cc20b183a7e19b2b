"""The declaration of a parameter."""

from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any, Self

from ..._sklearn import Interval, StrOptions

#: Groups in which the documentation lists parameters.
FIRST = "first"
MODEL = "model"
TRAINING = "training"
DATA = "data"
COMPUTING = "computing"

#: What the groups are, in the order of the documentation.
GROUPS = {
    FIRST: "Those that you change first",
    MODEL: "The model",
    TRAINING: "Training",
    DATA: "The table",
    COMPUTING: "Computing",
}

#: Allowed values that several parameters have.
WHOLE = Interval(Integral, 1, None, closed="left")
WHOLE_OR_ZERO = Interval(Integral, 0, None, closed="left")
AUTO = StrOptions({"auto"})


@dataclass(frozen=True)
class Option:
    """A parameter of estimators, without its default, which differs between methods.

    Parameters
    ----------
    values : list
        Allowed values, for scikit-learn's checks. If a value passes these but does not suit the data, ``fit`` says so.
    kind : str
        The same in words.
    group : str
        One of ``GROUPS``.
    text : str
        What the parameter does. Line breaks do not matter.
    shapes : bool, default=False
        Whether it shapes the model, so that training cannot continue with another value.
    """

    values: list
    kind: str
    group: str
    text: str
    shapes: bool = False

    def but(self, **changes) -> Self:
        """The same parameter of another method, where it differs."""
        return replace(self, **changes)


def parameter(option: Option, default: Any) -> Any:
    """A field of a dataclass, which is a parameter with this default."""
    return field(default=default, metadata={"option": option})


def options_of(kind: Any) -> dict[str, Option]:
    """The declarations of the parameters of a class, by name. A parameter of the user's own class may have none."""
    return {each.name: each.metadata["option"] for each in fields(kind) if "option" in each.metadata}
