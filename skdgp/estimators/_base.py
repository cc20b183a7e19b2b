"""What all estimators share: validate, scale, encode; predict in batches; store.

Methods differ by ``_make_model``; regressors and classifiers by ``_check_targets``,
``_encode_targets``, ``_make_likelihood`` and by what they make of the marginals.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import ClassVar, TypeVar, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, _fit_context
from sklearn.preprocessing import StandardScaler
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, validate_data

from ..gp.deep_gp import DeepGP, Marginals
from ..inference.memory import let_the_allocator_keep_pages
from ..inference.objectives import OBJECTIVES
from ..inference.steps import Batch
from ._callbacks import CALLBACK_STATE, CallbackSupportMixin
from ._ensemble import BaseEnsemble
from ._state import from_plain, to_plain

#: Numbers that the largest tensor of a batch of predictions may hold: 16 MiB in float32. Larger
#: batches are no faster.
PREDICT_NUMBERS = 2**21

#: Standardised inputs beyond this are as far from all others as any, but their squares may overflow.
FARTHEST = 1e15

T = TypeVar("T")


class BaseDeepGP(CallbackSupportMixin, BaseEnsemble, BaseEstimator, metaclass=ABCMeta):
    """Fitting, and prediction in batches, of deep Gaussian processes."""

    _structure: dict

    #: Parameters that a warm start cannot change.
    _structural_parameters: ClassVar[tuple[str, ...]] = ("normalize_X",)

    _parameter_constraints: ClassVar[dict] = {
        "objective": [StrOptions(set(OBJECTIVES))],
        "n_estimators": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "beta": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "normalize_X": ["boolean"],
        "device": [str],
        "dtype": [StrOptions({"auto", "float32", "float64"})],
        "cuda_graphs": ["boolean"],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    @abstractmethod
    def _check_targets(self, y: np.ndarray) -> None:
        """Learn how targets like ``y`` are encoded; raise ValueError if they cannot be."""

    @abstractmethod
    def _encode_targets(self, y: np.ndarray) -> np.ndarray:
        """Targets as the likelihood wants them, (n_samples, P)."""

    def _row_weights(self, y: np.ndarray) -> np.ndarray | float:
        """Factors of the weights of rows with targets ``y``."""
        return 1.0

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None, X_val=None, y_val=None):
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs, dense and finite, in any units.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets of a regressor, in any units; of a classifier labels of any kind, of shape (n_samples,).
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the rows' likelihood terms; only their ratios count. Rows of weight zero are left
            out.
        X_val : array-like of shape (n_val, n_features), default=None
            Rows to choose the best epoch by, instead of a part of ``X`` and ``y``. They are honoured with
            ``early_stopping=False`` too.
        y_val : array-like of shape (n_val,) or (n_val, n_outputs), default=None
            Their targets or labels. Needed with ``X_val``, and not without.

        Returns
        -------
        self : object
            The fitted estimator. If fitting fails, it stays what it was before.

        Raises
        ------
        ValueError
            If parameters or data are not what they must be.
        numpy.linalg.LinAlgError, FloatingPointError
            If numbers stay beyond floating point although the learning rate was halved ten times.
        KeyboardInterrupt
            If the user interrupts training (Ctrl-C) before the end of its first epoch.

        Warns
        -----
        UserWarning
            If the user interrupts training after its first epoch: the estimator is then fitted, with the
            best parameters so far.

        Examples
        --------
        >>> from skdgp import AVDGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(100, random_state=0)
        >>> model = AVDGPRegressor(max_iter=2, n_estimators=1, random_state=0)
        >>> model.fit(X[:80], y[:80], X_val=X[80:], y_val=y[80:]).validation_scores_.shape
        (2,)
        """
        with _unchanged_on_error(self):
            continued = self.module_ if self.warm_start and self.__sklearn_is_fitted__() else None
            self._keep_structure(fresh=continued is None)
            rows, validation = self._validate_rows(X, y, sample_weight, X_val, y_val, fresh=continued is None)
            X, y, weight = rows
            rows = X, y, weight / weight.mean()  # of a chunk they stay: other chunks may have others
            dtype = rows[0].dtype if self.dtype == "auto" else np.dtype(self.dtype)
            self.device_ = _resolve_device(self.device)
            data = self._to_batch(*rows, dtype=dtype)
            given = None if validation is None else self._to_batch(*validation, dtype=dtype)
            self._streams, self._n_seen = None, len(data)
            hooks = {"X": rows[0], "y": rows[1], "metadata": {"sample_weight": rows[2]}}
            self._fit_members(data, given, continued, hooks)
        return self

    def _learn_chunk(self, X, y, sample_weight, total_size: int | None, classes=None) -> None:
        """Learn from rows of which more will come; see ``partial_fit``."""
        with _unchanged_on_error(self):
            fresh = not self.__sklearn_is_fitted__()
            self._keep_structure(fresh=fresh)
            rows, _ = self._validate_rows(X, y, sample_weight, None, None, fresh=fresh, targets=classes)
            whole = isinstance(total_size, Real) and total_size == np.floor(total_size)  # 1e6 is welcome
            if total_size is not None and not (whole and total_size >= len(rows[0])):
                raise ValueError(
                    f"total_size={total_size!r} must be the number of rows of all chunks together, and this one has "
                    f"{len(rows[0])} rows: pass a whole number at least as large, or leave it out if unknown."
                )
            if fresh:
                self.device_, self._streams = _resolve_device(self.device), None
            self._n_seen = len(rows[0]) + (0 if fresh else self._n_seen)
            dtype = rows[0].dtype if self.dtype == "auto" else np.dtype(self.dtype)
            self._learn_from_chunk(
                self._to_batch(*rows, dtype=dtype), None if total_size is None else int(total_size), fresh=fresh
            )

    def _keep_structure(self, *, fresh: bool) -> None:
        """Note the parameters that shape the model; ValueError if one has changed since the last fit."""
        structure = {name: getattr(self, name) for name in self._structural_parameters}
        for name, value in structure.items():
            if not fresh and not np.array_equal(value, self._structure[name]):
                raise ValueError(
                    f"warm_start=True and partial_fit go on with a model that was built with {name}="
                    f"{self._structure[name]!r}, but {name} is now {value!r}: set it back, or start anew with fit and "
                    "warm_start=False."
                )
        self._structure = structure

    def _validate_rows(self, X, y, sample_weight, X_val, y_val, *, fresh: bool, targets=None) -> tuple:
        """Checked arrays of rows with positive weight, and of the rows held out by the user.

        Fresh ones decide how inputs and targets, ``y`` or ``targets`` if there are others, are scaled and encoded.
        """
        X, y = validate_data(self, X, y, reset=fresh, **self._check_options())
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        used = weight > 0
        X, y, weight = X[used], y[used], weight[used]
        if fresh:
            with np.errstate(over="ignore", invalid="ignore"):
                self._input_scaler = make_scaler(X, normalize=self.normalize_X)
                self._check_targets(y if targets is None else np.asarray(targets))
        weight = weight * self._row_weights(y)
        used = weight > 0  # a class without weight is absent, as a row without weight is
        X, y, weight = X[used], y[used], weight[used]
        if (X_val is None) != (y_val is None):
            missing, got = ("X_val", "y_val") if X_val is None else ("y_val", "X_val")
            raise ValueError(f"{got} was given without {missing}: give both or neither.")
        if X_val is None:
            return (X, y, weight), None
        X_val, y_val = validate_data(self, X_val, y_val, reset=False, **self._check_options())
        return (X, y, weight), (X_val, y_val, np.ones(len(X_val)))

    def _check_options(self) -> dict:
        """How rows are checked: arguments of scikit-learn's ``check_X_y``."""
        return {"dtype": [np.float64, np.float32], "multi_output": True, "y_numeric": True}

    def _to_batch(self, X, y, weight, *, dtype) -> Batch:
        """Scaled and encoded rows, in main memory."""
        columns = self._scale_inputs(X), self._encode_targets(y), weight
        return Batch(*(torch.as_tensor(column.astype(dtype)) for column in columns))

    def _scale_inputs(self, X: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = self._input_scaler.transform(X)
        bad = overflowing(self._input_scaler, scaled)
        if bad.any():
            column = int(np.flatnonzero(bad)[0])
            names = getattr(self, "feature_names_in_", range(X.shape[1]))
            raise ValueError(
                f"Column {names[column]!r} of X overflows when it is standardised: its values reach "
                f"{np.abs(X[:, column]).max():.1e}. Rescale the column, for instance to its logarithm."
            )
        return scaled

    def _predict_batches(self, X: np.ndarray, function: Callable[[list[Marginals]], T]) -> Iterator[tuple[slice, T]]:
        """What ``function`` makes of the members' marginals, for one batch of rows after the other.

        Where a GPU has too little memory for a batch, the batch is halved.
        """
        let_the_allocator_keep_pages()
        dtype = next(self.module_.parameters()).dtype
        members = [member.frozen() for member in cast(Sequence[DeepGP], self.module_)]
        n_batch = max(1, PREDICT_NUMBERS // max(member.numbers_per_row() for member in members))
        start = 0
        while start < len(X):
            rows = slice(start, min(start + n_batch, len(X)))
            try:
                scaled = self._scale_inputs(X[rows]).clip(-FARTHEST, FARTHEST)
                batch = torch.as_tensor(scaled, dtype=dtype, device=self.device_)
                with torch.no_grad():
                    values = function([member(batch) for member in members])
            except torch.OutOfMemoryError:
                if n_batch == 1:
                    raise
                n_batch //= 2
                continue
            yield rows, values
            start = rows.stop

    def __getstate__(self):
        """State without anything of torch's: it opens with other versions, and where there is no such device."""
        state = super().__getstate__()
        if "module_" in state:
            state = state | {"module_": to_plain(state["module_"]), "device_": "cpu", "_streams": None}
        return state

    def __setstate__(self, state):
        if "module_" in state:
            state = state | {"module_": from_plain(state["module_"]), "device_": torch.device(state["device_"])}
        super().__setstate__(state)

    def __sklearn_is_fitted__(self) -> bool:
        return "module_" in vars(self)


def make_scaler(columns: np.ndarray, *, normalize: bool) -> StandardScaler:
    """What standardises columns, or leaves them as they are."""
    scaler = StandardScaler(with_mean=normalize, with_std=normalize).fit(columns)
    if normalize:
        # Constant columns are not divided by anything, yet that of 1e30 differs from its mean by 1e14, by rounding.
        size = np.abs(scaler.mean_)
        rounding = 10 * np.finfo(np.result_type(columns, np.float32)).eps * size
        scaler.scale_ = np.where(scaler.scale_ < rounding, size, scaler.scale_)
    return scaler


def overflowing(scaler: StandardScaler, scaled: np.ndarray) -> np.ndarray:
    """Which columns have no finite variance, or are not finite once they are scaled."""
    variance = 0.0 if scaler.var_ is None else scaler.var_
    return ~(np.isfinite(scaled).all(axis=0) & np.isfinite(variance))


def _resolve_device(name: str) -> torch.device:
    """The device called ``name``, or a ValueError that says what there is."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        available = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        raise ValueError(f"device={name!r} cannot be used here. Available: 'auto', {available}.") from error
    return device


@contextmanager
def _unchanged_on_error(estimator: BaseEstimator):
    """Give the estimator its old attributes back if the body fails."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        callbacks = {name: value for name, value in vars(estimator).items() if name in CALLBACK_STATE}
        vars(estimator).clear()
        vars(estimator).update(before | callbacks)
        raise
