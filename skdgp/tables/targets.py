"""What a fit learns of its targets: of numbers whether they are transformed, and of labels which classes there are."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_array, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets

from ..gp.censored import middles
from .bounds import are_intervals, bounds_of, exact_bounds
from .cells import first_complex, first_text, is_missing, kind_of_dates
from .frames import as_array_or_frame
from .transforms import fitted_transform, is_undecided, logarithms_of_bounds, transformed

#: Types of numbers that models take as they are. Others become the first of them.
FLOATS = (np.float64, np.float32)

#: What else can be done about targets that are not known.
OR_ELSE = (
    ", pass bounds as y where a target is known to lie in an interval, or set n_latent_outputs where rows lack only "
    "some of several targets"
)

#: Options of scikit-learn's checks of features, whose cells may be missing.
OF_FEATURES: dict[str, Any] = {"dtype": FLOATS, "ensure_all_finite": "allow-nan"}


@dataclass(frozen=True)
class Numbers:
    """Targets of regressors.

    Parameters
    ----------
    target_transform : object
        The parameter of this name, or what was chosen in place of "auto".
    gaussian : bool
        Whether the noise of transformed targets is Gaussian.
    gaps : bool, default=False
        Whether rows may lack some of their targets. No row may lack its only target.
    transformer : transformer or None, default=None
        ``target_transform``, fitted to targets.
    flat : bool, default=True
        Whether targets have no axis of outputs.
    censored : bool, default=False
        Whether some targets are intervals. Then targets are bounds (n, 2) of a single output; see :mod:`.bounds`.
    """

    target_transform: Any
    gaussian: bool = True
    gaps: bool = False
    transformer: Any = None
    flat: bool = True
    censored: bool = False

    def meeting(self, y) -> Self:
        """The same for targets as the user gives them: they may be bounds."""
        return replace(self, censored=are_intervals(y))

    def learn(self, y: np.ndarray) -> Self:
        """The same with what targets like ``y`` say."""
        numbers = middles(y) if self.censored else self._checked(y)
        transformer = fitted_transform(self.target_transform, numbers, gaussian=self.gaussian)
        return replace(self, flat=y.ndim == 1 or self.censored, transformer=transformer)

    def attributes(self) -> dict[str, Any]:
        """Public attributes of an estimator."""
        return {"target_transform_": self.target_transform, "target_transformer_": self.transformer}

    @property
    def undecided(self) -> bool:
        """Whether rows are to decide how targets are transformed."""
        return is_undecided(self.target_transform)

    def checkable(self, y):
        """Targets for scikit-learn's checks, which find all that is wrong with numbers; bounds are checked already."""
        bounds = bounds_of(y)
        if self.censored:
            return exact_bounds(y) if bounds is None else bounds
        if bounds is None:
            return y
        if (bounds[:, 0] < bounds[:, 1]).any():
            raise ValueError(
                "y has intervals, but the model has learnt from exact targets only: fit anew with intervals among the "
                "targets."
            )
        return bounds[:, 0]

    def explain(self, error: Exception, y) -> None:
        """Raise an error that says why scikit-learn's checks failed, if the targets explain it."""
        refuse_others(y, error)
        if not self.censored:
            refuse_gaps(y, error, OR_ELSE, gaps=self.gaps and np.ndim(y) == 2)

    @property
    def check_options(self) -> dict:
        """Options of scikit-learn's checks of tables."""
        if self.censored:
            return {"validate_separately": (OF_FEATURES, {"dtype": FLOATS, "ensure_all_finite": False})}
        if not self.gaps:
            return OF_FEATURES | {"multi_output": True, "y_numeric": True}
        return {"validate_separately": (OF_FEATURES, OF_FEATURES | {"ensure_2d": False})}

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Targets (n,) or (n, P) as numbers (n, P), transformed; bounds (n, 2) as bounds."""
        if self.censored:
            return y if self.transformer is None else logarithms_of_bounds(y)
        return transformed(self.transformer, self._checked(y))

    def amounts(self, numbers: np.ndarray) -> np.ndarray:
        """Encoded targets (n, P) whose means make sense."""
        return middles(numbers) if self.censored else numbers

    def weights(self, y: np.ndarray, labels: np.ndarray, class_weight=None) -> np.ndarray | float:
        """Factors of the rows' weights: zero for rows that lack all targets, and one for others."""
        return (~np.isnan(y).all(axis=1)).astype(np.float64) if self.gaps and y.ndim == 2 else 1.0

    def order(self, numbers: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
        """Order of the rows. Each member holds out one part of it, the next member the part after that."""
        return random_state.permutation(len(numbers))

    def _checked(self, y: np.ndarray) -> np.ndarray:
        """Targets (n,) or (n, P) as finite numbers (n, P)."""
        refuse_others(y)
        refuse_gaps(y, None, OR_ELSE, gaps=self.gaps and y.ndim == 2)  # of objects, which are numbers only now
        finite = "allow-nan" if self.gaps and y.ndim == 2 else True
        return check_array(y.reshape(len(y), -1), dtype=FLOATS, input_name="y", ensure_all_finite=finite)


@dataclass(frozen=True)
class Labels:
    """Targets of classifiers.

    Parameters
    ----------
    classes : ndarray of shape (n_classes,) or None, default=None
        Labels of the classes, sorted; None before they are known.
    """

    classes: Any = None

    check_options: ClassVar = OF_FEATURES
    target_transform: ClassVar = None
    transformer: ClassVar = None
    undecided: ClassVar = False
    flat: ClassVar = False  # values of functions have an axis of classes
    censored: ClassVar = False

    def meeting(self, y) -> Self:
        """The same, whatever the labels are."""
        return self

    def learn(self, y: np.ndarray) -> Self:
        """The same with the classes that are among the labels ``y``."""
        check_classification_targets(y)
        classes = np.unique(y)
        if len(classes) < 2:
            raise ValueError(
                f"A classifier needs rows of at least two classes, but y contains 1 class, {classes.tolist()[0]!r}, "
                "among the rows of positive weight: add rows of another one."
            )
        return replace(self, classes=classes)

    def attributes(self) -> dict[str, Any]:
        """Public attributes of an estimator."""
        return {"classes_": self.classes}

    def checkable(self, y):
        """Labels for scikit-learn's checks; ValueError if some are missing, or if they cannot be sorted."""
        return check_labels(as_array_or_frame(y))

    def explain(self, error: Exception, y) -> None:
        """Raise an error that says where labels are missing, if they are numbers; :meth:`checkable` says all else."""
        refuse_gaps(y, error)

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Numbers (n, 1) of the rows' classes."""
        unknown = np.setdiff1d(y, self.classes)
        if len(unknown):
            raise ValueError(
                f"y contains the label {unknown.tolist()[0]!r}, but the model was given the classes {self.classes}: "
                "leave out its rows, or fit anew with it."
            )
        return np.searchsorted(self.classes, y)[:, None]

    def amounts(self, numbers: np.ndarray) -> np.ndarray:
        """Encoded labels (n, 1) as indicators (n, K) of the classes, whose means are shares."""
        return np.eye(len(self.classes))[numbers[:, 0]]

    def weights(self, y: np.ndarray, labels: np.ndarray, class_weight=None) -> np.ndarray:
        """Weights of the labels ``y``. ``class_weight`` and the ``labels`` of the training rows decide them."""
        if isinstance(class_weight, dict):  # a chunk may lack a class that it names
            labels = self.classes
        weights = compute_sample_weight(class_weight, labels)
        if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.max() > 0):
            raise ValueError(
                f"class_weight={class_weight!r} must give finite, non-negative weights, and a positive one to "
                f"some class of y, which has {np.unique(labels)}."
            )
        labels, first = np.unique(labels, return_index=True)
        weight_of = dict(zip(labels.tolist(), weights[first], strict=True))
        distinct, number = np.unique(y, return_inverse=True)
        return np.array([weight_of.get(label, 1.0) for label in distinct.tolist()])[number]

    def order(self, numbers: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
        """Random order of the rows that spreads each class evenly, so that any part of it is stratified."""
        order = random_state.permutation(len(numbers))
        labels = numbers[order, 0].astype(int)
        counts = np.bincount(labels)
        by_class = np.argsort(labels, kind="stable")
        rank = np.empty(len(numbers))
        rank[by_class] = np.concatenate([np.arange(count) + 0.5 for count in counts])
        turns = random_state.permutation(len(counts))  # among classes of equal size
        return order[np.lexsort((turns[labels], rank / counts[labels]))]


def check_labels(y, name: str = "y"):
    """Labels as they are, or as numbers where a list or an array of objects holds numbers.

    An error says if labels are missing, if they are no labels, or if they cannot be sorted since they are of several
    kinds.
    """
    labels = np.asarray(y, dtype=object if isinstance(y, list | tuple) else None)  # or NumPy would make text of numbers
    if labels.dtype.kind != "O" or not labels.ndim:
        return y
    values = labels.ravel().tolist()
    for row, label in enumerate(values):
        if is_missing(label):
            raise ValueError(f"{name} holds {label!r} in row {row}, which is no label: leave out rows without one.")
        if not isinstance(label, str | bytes | complex | np.generic | int | float):
            raise ValueError(f"{name} holds {label!r}, which is neither text nor a number: make text of all labels.")
    try:
        np.unique(labels)
    except TypeError as error:
        kinds = " and ".join(sorted({type(label).__name__ for label in values}))
        raise ValueError(
            f"{name} holds labels of several types, {kinds}, which cannot be sorted: make text of all, for instance."
        ) from error
    numbers = np.array(values).reshape(labels.shape)
    return y if numbers.dtype.kind in "OUS" else numbers


def refuse_others(y, error: Exception | None = None) -> None:
    """Raise an error if there are dates, complex numbers or text among targets that must be numbers."""
    values = np.asarray(y)
    dates = kind_of_dates(values)
    if dates is not None:
        raise ValueError(
            f"y holds dates or durations, {dates}: turn them into numbers, such as days, before."
        ) from error
    refuse_complex("y", values, error)
    text = first_text(values.ravel())
    if text is not None:
        raise ValueError(
            f"y holds text, such as {text!r}, and a regressor predicts numbers: take a classifier, or make numbers of "
            "the text."
        ) from error


def refuse_gaps(y, error: Exception | None, or_else: str = "", *, gaps: bool = False) -> None:
    """Raise an error that says which row has no finite target, and what to do about it.

    With ``gaps`` targets may be missing, and only infinite ones are wrong.
    """
    try:
        values = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):  # these are no numbers, and scikit-learn says what they are
        return
    wrong = np.isinf(values) if gaps else ~np.isfinite(values)
    rows = np.unique(np.nonzero(wrong)[0]) if values.ndim else np.empty(0)
    if not len(rows):
        return
    what = "infinity or a value too large for dtype('float64')" if np.isinf(values[rows[0]]).any() else "NaN"
    raise ValueError(
        f"Input y contains {what}. The first of {len(rows)} such rows is row {rows[0]}: leave out rows without a "
        f"finite target{or_else}."
    ) from error


def refuse_complex(what: str, values: np.ndarray, error: Exception | None) -> None:
    """Raise an error if there is a complex number among values."""
    value = first_complex(values)
    if value is not None:
        raise ValueError(
            f"Complex data not supported, but {what} holds {value!r}: pass the real and the imaginary part as two "
            "columns."
        ) from error
