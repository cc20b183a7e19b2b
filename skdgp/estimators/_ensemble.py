"""How the members of an ensemble are made and trained, all rows at once or chunk by chunk."""

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor, nn

from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Likelihood
from ..inference.calibration import MAX_ROWS
from ..inference.objectives import OBJECTIVES, elbo
from ..inference.processes import current
from ..inference.steps import Batch, Settings
from ..inference.streaming import Stream
from ..inference.training import SCORED_ROWS, History, train
from ._auto import Auto
from ._monitor import Monitor, curves

#: Rows that initial values may be computed from.
INITIALISATION_ROWS = 10_000

#: Fewer rows than this are too few to hold any of them out.
MIN_ROWS_TO_SPLIT = 20


class BaseEnsemble:
    """Training of members from scaled rows on the device, as the parameters of the estimator say."""

    module_: nn.ModuleList
    device_: torch.device
    loss_curve_: np.ndarray
    _streams: list[Stream] | None
    _n_seen: int

    # Parameters, which scikit-learn checks.
    n_estimators: Any
    objective: Any
    beta: Any
    max_iter: Any
    batch_size: Any
    learning_rate: Any
    early_stopping: Any
    validation_fraction: Any
    n_iter_no_change: Any
    tol: Any
    dtype: Any
    cuda_graphs: Any
    random_state: Any

    @property
    @abstractmethod
    def _auto(self) -> Auto:
        """What "auto" stands for."""

    @property
    def _beta(self) -> float:
        """Weight of the penalty on inducing variables."""
        return self.beta

    @abstractmethod
    def _make_likelihood(self, y: Tensor) -> Likelihood:
        """Likelihood of encoded targets ``y``."""

    @abstractmethod
    def _make_model(self, X: Tensor, likelihood: Likelihood, generator: torch.Generator) -> DeepGP:
        """An untrained member for inputs like ``X``, on the CPU."""

    def _recalibrate(self, judges: Sequence[Batch], batch_size: int) -> None:
        """Tune the members' likelihoods to the rows that each has not learnt from."""

    def _order_rows(self, y: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
        """Order of the rows of encoded targets ``y`` of which members hold out successive parts."""
        return random_state.permutation(len(y))

    def _log_jacobian(self) -> float:
        """Logarithm of the density of a user's target over that of its encoding."""
        return 0.0

    def _fit_members(self, data: Batch, given: Batch | None, continued: nn.ModuleList | None, hooks: dict) -> None:
        """Train every member of the ensemble, each with its own seed and held-out rows."""
        random_state = check_random_state(self.random_state)
        order = self._order_rows(data.y.cpu().numpy(), random_state)
        order, seeds = _agree(order, _seeds(random_state, self._n_members(len(data))))
        settings = self._settings(len(data))
        precision = self._precision(data)
        monitor = Monitor(self, len(seeds), settings.max_iter, hooks, data.X.dtype)
        judges: list[Any] = []
        for index, seed in enumerate(seeds):
            generator, noise = self._generators(seed)
            model = self._new_model(data, order, generator) if continued is None else self._copy(continued, index)
            model.to(device=self.device_, dtype=precision)
            learn, held_out = self._split(data, given, order, index)
            judge = None if held_out is None else held_out.spread(SCORED_ROWS).to(self.device_, precision)
            rows = self._near(learn.to("cpu", precision))
            monitor.begin(model)
            try:
                history = self._train(model, rows, judge, settings, noise, monitor.epoch)
            except KeyboardInterrupt:
                if not monitor.members:
                    raise
                monitor.histories[-1].interrupted = True  # the member before is the last one
                break
            judges.append(None if held_out is None else held_out.spread(MAX_ROWS).to(self.device_, data.X.dtype))
            if monitor.end(history):
                break
        self.module_ = nn.ModuleList(monitor.members)
        if judges[0] is not None:
            self._recalibrate(judges, settings.batch_size)
        self._record(data, monitor.histories, settings)
        monitor.close()
        if monitor.histories[-1].interrupted:
            warnings.warn(
                f"Training was interrupted: {type(self).__name__} is fitted with the best parameters so far, of "
                f"{len(monitor.members)} of {len(seeds)} members. Call fit again to train it to the end.",
                UserWarning,
                stacklevel=4,
            )

    def _learn_from_chunk(self, data: Batch, total_size: int | None, *, fresh: bool) -> None:
        """One pass over rows of which more will come."""
        precision = self._precision(data)
        if self._streams is None:
            streams = self._open_streams(data, precision, total_size, fresh=fresh)
        else:
            streams = deepcopy(self._streams)  # should one fail, all stay what they were
        settings = self._settings(self._n_seen if total_size is None else total_size, len(data))
        chunk = self._near(data.to("cpu", precision))
        loss = float(np.mean([stream.learn(chunk, settings) for stream in streams]))
        self._streams = streams
        self.module_ = nn.ModuleList(stream.averaged().to(data.X.dtype).requires_grad_(False) for stream in streams)
        self.loss_curve_ = np.append([] if fresh else self.loss_curve_, loss)
        self.n_iter_ = len(self.loss_curve_)
        self.best_iter_ = [self.n_iter_] * len(streams)
        self.validation_scores_ = np.empty(0)
        self.length_scales_ = self._length_scales()
        vars(self).pop("lower_bound_", None)  # of a fit before

    def _open_streams(
        self, data: Batch, precision: torch.dtype, total_size: int | None, *, fresh: bool
    ) -> list[Stream]:
        """Streams that go on from the members that there are, or new ones for data that begin like ``data``."""
        random_state = check_random_state(self.random_state)
        order = random_state.permutation(len(data))
        n_members = self._n_members(total_size) if fresh else len(self.module_)
        streams = []
        for index, seed in enumerate(_seeds(random_state, n_members)):
            generator, noise = self._generators(seed)
            model = self._new_model(data, order, generator) if fresh else self._copy(self.module_, index)
            streams.append(Stream(model.to(device=self.device_, dtype=precision), noise))
        return streams

    def _n_members(self, n_rows: int | None) -> int:
        """Members of the ensemble; "auto" is one where the number of rows is not known."""
        if self.n_estimators != "auto":
            return self.n_estimators
        return 1 if n_rows is None else self._auto.n_estimators(n_rows)

    def _generators(self, seed: int) -> tuple[torch.Generator, torch.Generator]:
        """Sources of randomness on the CPU, and where training is."""
        generator = torch.Generator().manual_seed(seed)
        on_cpu = self.device_.type == "cpu"
        return generator, generator if on_cpu else torch.Generator(self.device_).manual_seed(seed)

    def _new_model(self, data: Batch, order: np.ndarray, generator: torch.Generator) -> DeepGP:
        """An untrained member, whose initial values come from the first rows in a random order."""
        sample = data.rows(torch.as_tensor(order[:INITIALISATION_ROWS])).to("cpu", torch.float32)
        return self._make_model(sample.X, self._make_likelihood(sample.y), generator)

    @staticmethod
    def _copy(members: nn.ModuleList, index: int) -> DeepGP:
        """A member to go on with."""
        return cast(DeepGP, deepcopy(members[index % len(members)])).requires_grad_(True)

    def _near(self, rows: Batch) -> Batch:
        """The rows on the device, or where it has no room for them in main memory: training then fetches them."""
        try:
            return rows.to(self.device_, rows.X.dtype)
        except torch.OutOfMemoryError:
            return rows

    def _precision(self, data: Batch) -> torch.dtype:
        """What members are trained in."""
        return torch.float32 if self.dtype == "auto" else data.X.dtype

    def _train(self, model: DeepGP, rows: Batch, judge: Batch | None, settings: Settings, *others) -> History:
        """Train one member; ``others`` as of :func:`skdgp.inference.training.train`."""
        return train(model, rows, judge, settings, *others)

    def _settings(self, n_rows: int, n_chunk: int | None = None) -> Settings:
        """The training's settings for ``n_rows``, of which a chunk is there at a time, every "auto" resolved."""
        batch_size = self._auto.batch_size(n_rows) if self.batch_size == "auto" else self.batch_size
        batch_size = min(batch_size, n_chunk or n_rows)
        max_iter = self._auto.max_iter(n_rows, batch_size) if self.max_iter == "auto" else self.max_iter
        return Settings(
            objective=OBJECTIVES[self.objective],
            kl_weight=self._beta / n_rows,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=self.learning_rate,
            n_iter_no_change=self.n_iter_no_change,
            tol=self.tol,
            cuda_graphs=self.cuda_graphs,
        )

    def _split(self, data: Batch, given: Batch | None, order: np.ndarray, index: int) -> tuple[Batch, Batch | None]:
        """Rows that member ``index`` learns from, and those it is judged by.

        Members hold out successive parts of one random ``order``, so that together they learn from
        every row.
        """
        if given is not None or not self.early_stopping or len(data) < MIN_ROWS_TO_SPLIT:
            return data, given
        n_held_out = min(max(1, round(self.validation_fraction * len(data))), len(data) - 1)
        rolled = torch.as_tensor(np.roll(order, -index * n_held_out))
        return data.rows(rolled[n_held_out:]), data.rows(rolled[:n_held_out])

    def _record(self, data: Batch, histories: list[History], settings: Settings) -> None:
        """Public attributes that say what training did and what it found."""
        for name, value in curves(histories).items():
            setattr(self, name, value)
        self.length_scales_ = self._length_scales()
        members = cast(Sequence[DeepGP], self.module_)
        bounds = []
        for member in (each.frozen() for each in members):
            total = 0.0
            # Fresh samples, as in training: unbiased with few of them, and rows average out.
            noise = torch.Generator(self.device_).manual_seed(0)
            for start in range(0, len(data), settings.batch_size):
                batch = data.rows(slice(start, start + settings.batch_size)).to(self.device_, data.X.dtype)
                bound = elbo(member(batch.X, noise), member.likelihood, batch.y, batch.weight, 1 / len(data))
                total += len(batch) * bound.item()
            bounds.append(total)
        self.lower_bound_ = float(np.mean(bounds) + float(data.weight.sum()) * self._log_jacobian())

    def _length_scales(self) -> list[np.ndarray]:
        members = cast(Sequence[DeepGP], self.module_)
        scales = [[layer.kernel.lengthscale.cpu().numpy() for layer in member.layers] for member in members]
        return [np.stack(layer) for layer in zip(*scales, strict=True)]


def _agree(order: np.ndarray, seeds: list[int]) -> tuple[np.ndarray, list[int]]:
    """Order of rows and seeds of the first of the processes that train together, if they have the same rows."""
    processes = current()
    numbers = processes.gather(len(order))
    if len(set(numbers)) > 1:
        raise ValueError(
            f"The processes learn from different numbers of rows, {numbers}: give every process the same data, of "
            "which each then takes its share."
        )
    return processes.agree((order, seeds))


def _seeds(random_state: np.random.RandomState, number: int) -> list[int]:
    """Seeds of members."""
    return [int(seed) for seed in random_state.randint(np.iinfo(np.int32).max, size=number)]
