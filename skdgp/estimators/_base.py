"""What all estimators share: validate, scale, split, build, train; predict in batches.

Methods differ by ``_make_model``; regressors and classifiers by ``_check_targets``,
``_encode_targets``, ``_make_likelihood`` and by what they make of the marginals.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from numbers import Integral, Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, _fit_context
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, validate_data
from torch import Tensor, nn

from ..gp.deep_gp import DeepGP, Marginals
from ..gp.likelihoods import Likelihood
from ..inference.objectives import OBJECTIVES, elbo
from ..inference.training import Batch, History, Settings, train
from ._auto import Auto
from ._progress import ProgressLine

#: Numbers that the largest tensor of a batch of predictions may hold: 16 MiB in float32. Larger
#: batches are no faster.
PREDICT_NUMBERS = 2**22

#: Standardised inputs beyond this are as far from all others as any, but their squares may overflow.
FARTHEST = 1e15

#: Rows that initial values may be computed from.
INITIALISATION_ROWS = 10_000

#: Fewer rows than this are too few to hold any of them out.
MIN_ROWS_TO_SPLIT = 20


class BaseDeepGP(BaseEstimator, metaclass=ABCMeta):
    """Fitting, and prediction in batches, of deep Gaussian processes."""

    module_: nn.ModuleList
    device_: torch.device

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
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    @property
    @abstractmethod
    def _auto(self) -> Auto:
        """What "auto" stands for."""

    @abstractmethod
    def _check_targets(self, y: np.ndarray) -> None:
        """Learn how targets like ``y`` are encoded; raise ValueError if they cannot be."""

    @abstractmethod
    def _encode_targets(self, y: np.ndarray) -> np.ndarray:
        """Targets as the likelihood wants them, (n_samples, P)."""

    @abstractmethod
    def _make_likelihood(self, y: Tensor) -> Likelihood:
        """Likelihood of encoded targets ``y``."""

    @abstractmethod
    def _make_model(self, X: Tensor, likelihood: Likelihood, generator: torch.Generator) -> DeepGP:
        """An untrained member for inputs like ``X``, on the CPU."""

    def _recalibrate(self, judges: Sequence[Batch], batch_size: int) -> None:
        """Tune the members' likelihoods to the rows that each has not learnt from."""

    def _row_weights(self, y: np.ndarray) -> np.ndarray | float:
        """Factors of the weights of rows with targets ``y``."""
        return 1.0

    def _order_rows(self, y: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
        """Order of the rows of encoded targets ``y`` of which members hold out successive parts."""
        return random_state.permutation(len(y))

    def _log_jacobian(self) -> float:
        """Logarithm of the density of a user's target over that of its encoding."""
        return 0.0

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None, X_val=None, y_val=None):
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs, dense and finite.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the rows' likelihood terms. Rows of weight zero are left out.
        X_val, y_val : array-like, default=None
            Rows to choose the best epoch by, instead of a part of ``X`` and ``y``. Both or neither;
            they are honoured with ``early_stopping=False`` too.

        Returns
        -------
        self : object
            The fitted estimator. If fitting fails, it stays what it was before.
        """
        with _unchanged_on_error(self):
            structure = {name: getattr(self, name) for name in self._structural_parameters}
            continued = self.module_ if self.warm_start and self.__sklearn_is_fitted__() else None
            if continued is not None:
                self._check_same_structure(structure)
            self._structure = structure
            X, y, weight, validation = self._validate_rows(X, y, sample_weight, X_val, y_val, continued is None)
            dtype = X.dtype if self.dtype == "auto" else np.dtype(self.dtype)
            self.device_ = _resolve_device(self.device)
            data = self._to_batch(X, y, weight, dtype=dtype)
            given = None if validation is None else self._to_batch(*validation, dtype=dtype)
            self._fit_members(data, given, continued)
        return self

    def _check_same_structure(self, structure: dict) -> None:
        """Raise ValueError if a parameter that shapes the model has changed since the last fit."""
        for name, value in structure.items():
            if not np.array_equal(value, self._structure[name]):
                raise ValueError(
                    f"warm_start=True goes on with a model that was built with {name}={self._structure[name]!r}, but "
                    f"{name} is now {value!r}: set it back, or set warm_start=False to start anew."
                )

    def _validate_rows(self, X, y, sample_weight, X_val, y_val, fresh: bool) -> tuple:
        """Checked arrays of rows with positive weight, and of the rows held out by the user."""
        X, y = validate_data(self, X, y, reset=fresh, **self._check_options())
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        used = weight > 0
        X, y, weight = X[used], y[used], weight[used]
        if fresh:
            with np.errstate(over="ignore", invalid="ignore"):
                self._input_scaler = StandardScaler(with_mean=self.normalize_X, with_std=self.normalize_X).fit(X)
                self._check_targets(y)
        weight = weight * self._row_weights(y)
        used = weight > 0  # a class without weight is absent, as a row without weight is
        X, y, weight = X[used], y[used], weight[used] / weight[used].mean()
        if (X_val is None) != (y_val is None):
            missing, got = ("X_val", "y_val") if X_val is None else ("y_val", "X_val")
            raise ValueError(f"{got} was given without {missing}: give both or neither.")
        if X_val is None:
            return X, y, weight, None
        X_val, y_val = validate_data(self, X_val, y_val, reset=False, **self._check_options())
        return X, y, weight, (X_val, y_val, np.ones(len(X_val)))

    def _check_options(self) -> dict:
        """How rows are checked: arguments of scikit-learn's ``check_X_y``."""
        return {"dtype": [np.float64, np.float32], "multi_output": True, "y_numeric": True}

    def _to_batch(self, X, y, weight, *, dtype) -> Batch:
        """Scaled and encoded rows on the device."""
        columns = self._scale_inputs(X), self._encode_targets(y), weight
        return Batch(*(torch.as_tensor(column.astype(dtype), device=self.device_) for column in columns))

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

    def _fit_members(self, data: Batch, given: Batch | None, continued: nn.ModuleList | None) -> None:
        """Train every member of the ensemble, each with its own seed and held-out rows."""
        random_state = check_random_state(self.random_state)
        order = self._order_rows(data.y.cpu().numpy(), random_state)
        n_members = self._auto.n_estimators(len(data)) if self.n_estimators == "auto" else self.n_estimators
        seeds = random_state.randint(np.iinfo(np.int32).max, size=n_members)
        settings = self._settings(len(data))
        precision = self._precision(data)
        progress = ProgressLine(type(self).__name__, len(seeds), settings.max_iter, silent=not self.verbose)
        members: Any = nn.ModuleList()
        histories: list[History] = []
        judges: list[Any] = []
        for index, seed in enumerate(seeds):
            generator = torch.Generator().manual_seed(int(seed))
            learn, held_out = self._split(data, given, order, index)
            if continued is None:
                sample = data.rows(torch.as_tensor(order[:INITIALISATION_ROWS], device=self.device_))
                sample = sample.to("cpu", torch.float32)
                model = self._make_model(sample.X, self._make_likelihood(sample.y), generator)
            else:
                model = cast(DeepGP, deepcopy(continued[index % len(continued)])).requires_grad_(True)
            model.to(device=self.device_, dtype=precision)
            noise = generator if self.device_.type == "cpu" else torch.Generator(self.device_).manual_seed(int(seed))
            judge = None if held_out is None else held_out.to(self.device_, precision)
            rows = learn.to(self.device_, precision)
            histories.append(self._train(model, rows, judge, settings, noise, progress.epoch))
            members.append(model.to(data.X.dtype).requires_grad_(False))
            judges.append(held_out)
            progress.next_member()
        self.module_ = members
        if judges[0] is not None:
            self._recalibrate(judges, settings.batch_size)
        self._record(data, histories, settings)
        progress.close()

    def _precision(self, data: Batch) -> torch.dtype:
        """What members are trained in."""
        return torch.float32 if self.dtype == "auto" else data.X.dtype

    def _train(self, model: DeepGP, rows: Batch, judge: Batch | None, settings: Settings, *others) -> History:
        """Train one member; ``others`` as of :func:`skdgp.inference.training.train`."""
        return train(model, rows, judge, settings, *others)

    def _settings(self, n_rows: int) -> Settings:
        """The training's settings, every "auto" resolved."""
        batch_size = self._auto.batch_size(n_rows) if self.batch_size == "auto" else self.batch_size
        batch_size = min(batch_size, n_rows)
        max_iter = self._auto.max_iter(n_rows, batch_size) if self.max_iter == "auto" else self.max_iter
        return Settings(
            objective=OBJECTIVES[self.objective],
            kl_weight=self.beta / n_rows,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=self.learning_rate,
            n_iter_no_change=self.n_iter_no_change,
            tol=self.tol,
        )

    def _split(self, data: Batch, given: Batch | None, order: np.ndarray, index: int) -> tuple[Batch, Batch | None]:
        """Rows that member ``index`` learns from, and those it is judged by.

        Members hold out successive parts of one random ``order``, so that together they learn from
        every row.
        """
        if given is not None or not self.early_stopping or len(data) < MIN_ROWS_TO_SPLIT:
            return data, given
        n_held_out = min(max(1, round(self.validation_fraction * len(data))), len(data) - 1)
        rolled = torch.as_tensor(np.roll(order, -index * n_held_out), device=self.device_)
        return data.rows(rolled[n_held_out:]), data.rows(rolled[:n_held_out])

    def _record(self, data: Batch, histories: Sequence[History], settings: Settings) -> None:
        """Public attributes that say what training did and what it found."""
        self.n_iter_ = max(len(history.loss) for history in histories)
        self.loss_curve_ = _mean_curve([history.loss for history in histories])
        self.validation_scores_ = _mean_curve([history.score for history in histories])
        self.best_iter_ = [history.best_epoch for history in histories]
        members = cast(Sequence[DeepGP], self.module_)
        scales = [[layer.kernel.lengthscale.cpu().numpy() for layer in member.layers] for member in members]
        self.length_scales_ = [np.stack(layer) for layer in zip(*scales, strict=True)]
        bounds = []
        for member in members:
            total = 0.0
            # Fresh samples, as in training: unbiased with few of them, and rows average out.
            noise = torch.Generator(self.device_).manual_seed(0)
            for start in range(0, len(data), settings.batch_size):
                batch = data.rows(slice(start, start + settings.batch_size))
                bound = elbo(member(batch.X, noise), member.likelihood, batch.y, batch.weight, 1 / len(data))
                total += len(batch) * bound.item()
            bounds.append(total)
        self.lower_bound_ = float(np.mean(bounds) + float(data.weight.sum()) * self._log_jacobian())

    def _marginals(self, X: np.ndarray) -> Iterator[tuple[slice, list[Marginals]]]:
        """Marginals of every member for one batch of rows after the other.

        Where a GPU has too little memory for a batch, the batch is halved.
        """
        dtype = next(self.module_.parameters()).dtype
        members = cast(Sequence[DeepGP], self.module_)
        n_batch = max(1, PREDICT_NUMBERS // max(member.numbers_per_row() for member in members))
        start = 0
        while start < len(X):
            rows = slice(start, min(start + n_batch, len(X)))
            try:
                scaled = self._scale_inputs(X[rows]).clip(-FARTHEST, FARTHEST)
                batch = torch.as_tensor(scaled, dtype=dtype, device=self.device_)
                with torch.no_grad():
                    marginals = [member(batch) for member in members]
            except torch.OutOfMemoryError:
                if n_batch == 1:
                    raise
                n_batch //= 2
                continue
            yield rows, marginals
            start = rows.stop

    def __getstate__(self):
        state = super().__getstate__()
        if "module_" in state:  # opens on machines without the device it was made on
            state["module_"] = deepcopy(state["module_"]).cpu()
            state["device_"] = torch.device("cpu")
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return "module_" in vars(self)


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


def _mean_curve(curves: list[list[float]]) -> np.ndarray:
    """Mean of curves of different lengths, at every point over those that reach it."""
    length = max(map(len, curves))
    padded = np.full((len(curves), length), np.nan)
    for row, curve in zip(padded, curves, strict=True):
        row[: len(curve)] = curve
    return np.nanmean(padded, axis=0)


@contextmanager
def _unchanged_on_error(estimator: BaseEstimator):
    """Give the estimator its old attributes back if the body fails."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
