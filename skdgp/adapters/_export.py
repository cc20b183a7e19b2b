"""Mean and deviation of a fitted regressor as a PyTorch module, which can be exported."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..estimators._fitted import built_with, fitted, learnt, query
from ..estimators._parameters import method_of
from ..estimators._regression import DeepGPRegressor
from ..gp.amortised_layer import AmortisedLayer
from ..gp.deep_gp import Marginals
from ..gp.neighbours import PlainNeighbours
from ..tables import Table
from ..tables.table import FARTHEST
from ._back import Back, back_of


def check_plain(regressor, what: str) -> None:
    """ValueError if a fitted regressor does more than a module of plain tensors can do, TypeError if it is none."""
    if not isinstance(regressor, DeepGPRegressor):
        raise TypeError(f"{what} takes regressors of skdgp, got {type(regressor).__name__}: give a fitted one.")
    predictor = fitted(regressor)
    table = learnt(regressor).table
    if table.date_features:
        raise ValueError(
            f"{what} takes models of numbers and categories, but X had dates in {list(table.date_features)}: compute "
            "numbers from them before."
        )
    if table.trends:
        raise ValueError(
            f"{what} takes models of PyTorch alone, but this one has trend={built_with(regressor, 'trend')!r}: fit "
            "with trend=None."
        )
    if not predictor.likelihoods[0].additive:
        raise ValueError(
            f"{what} takes models whose noise is added and the same everywhere, but this one has "
            f'likelihood={built_with(regressor, "likelihood")!r}: take "gaussian".'
        )


def _back_of(regressor, what: str) -> Back | None:
    """How targets are made of what the fitted models predict; None if they are the same."""
    transformer = learnt(regressor).table.targets.transformer
    if transformer is None:
        return None
    back = back_of(transformer)
    if back is None:
        raise ValueError(
            f'{what} has no formula for target_transform={built_with(regressor, "target_transform")!r}: take "log", '
            '"logit", "yeo-johnson", or a PowerTransformer.'
        )
    return back


class _Columns(nn.Module):
    """The models' columns of complete rows, with numbers for levels; see :class:`.tables.encoding.Encoding`."""

    def __init__(self, table: Table):
        super().__init__()
        self.encoding, self.may_lack = table.encoding, table.may_lack
        for j, values in enumerate(self.encoding.values):
            self.register_buffer(f"values_{j}", None if values is None else torch.as_tensor(values))

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Columns (..., width), not standardised, and which categories rows lack (..., J)."""
        columns, encoding = list[Tensor](), self.encoding
        if X.dim() < 2 or X.numel() == 0:
            raise ValueError(f"X has the shape {tuple(X.shape)}: give at least one row, as (..., n, n_features).")
        if X.shape[-1] != len(encoding.n_levels):  # others would be left out in silence, or repeated
            raise ValueError(
                f"X has {X.shape[-1]} columns, but the model has learnt from {len(encoding.n_levels)}: give these."
            )
        for j, (n_levels, is_number) in enumerate(zip(encoding.n_levels, encoding.is_number.tolist(), strict=True)):
            cell = self._cell(X, j)
            if not is_number:
                known = (cell == torch.arange(n_levels, device=X.device)).to(X)
                columns += [known, 1.0 - known.sum(-1, keepdim=True)]
                continue
            values = getattr(self, f"values_{j}")
            if values is not None:
                place = torch.where(cell.isnan(), 0.0, cell).clamp(0, n_levels - 1).long()
                cell = torch.where(cell == place, values[place], torch.nan)
            columns.append(cell)
            if encoding.uncertain[j]:
                columns.append(torch.zeros_like(cell))
        lacking = [(self._cell(X, j) == place).to(X) for j, place in self.may_lack.items()]
        return torch.cat(columns, dim=-1), torch.cat([*lacking, X[..., :0]], dim=-1)

    def _cell(self, X: Tensor, j: int) -> Tensor:
        """Cells (..., 1) of a feature. A category that is missing is a level, if it was in ``fit``."""
        cell = X[..., j : j + 1]
        if self.encoding.empty[j]:
            return torch.zeros_like(cell)
        return torch.where(cell.isnan(), float(self.may_lack[j]), cell) if j in self.may_lack else cell


class MomentsModule(nn.Module):
    """A PyTorch module in float64 that computes means and standard deviations of observations.

    It computes the same as ``predict(X, return_std=True)``, and can be differentiated. In place of categories it takes
    the numbers of their levels, which :meth:`numbers` looks up. Rows with missing numbers have NaN, since averages over
    draws of them are no part of it; so have new levels of categories with more than 128.

    Parameters
    ----------
    regressor : regressor of this package
        A regressor that has been fitted. Its likelihood must have additive noise, as "gaussian" has. There may be no
        dates and no ``trend``. A ``target_transform`` may be one of the names, or scikit-learn's ``PowerTransformer``.

    Attributes
    ----------
    levels : dict
        For each category, by its name or number, the list of its levels. The place in it is what stands for a level,
        and any other number for a new level. None stands for a missing one.

    Raises
    ------
    TypeError
        If ``regressor`` is not a regressor of this package.
    ValueError
        If it does not meet the conditions above.

    Examples
    --------
    >>> import torch
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.adapters import MomentsModule
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
    >>> mean, std = MomentsModule(model)(torch.as_tensor(X))
    >>> bool(abs(mean[:, 0].numpy() - model.predict(X)).max() < 1e-6)
    True
    """

    shift: Tensor
    scale: Tensor
    target_shift: Tensor
    target_scale: Tensor
    noise: Tensor
    noise_share: Tensor
    noise_mixture: Tensor
    member_share: Tensor
    beside: Tensor

    @torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
    def __init__(self, regressor):
        super().__init__()
        check_plain(regressor, type(self).__name__)
        table, self.predictor, self._regressor = learnt(regressor).table, fitted(regressor).alone(), regressor
        likelihood, self.columns = self.predictor.likelihoods[0], _Columns(table)
        numbers = {"shift": table.units.shift, "scale": table.units.scale, "noise": regressor._mean_noise_variance()}
        numbers |= {"target_shift": likelihood.units.shift, "target_scale": likelihood.units.scale}
        shares, mixtures = zip(*(one.noise() for one in self.predictor.likelihoods), strict=True)
        # Members may have noise of one Gaussian or two. The second one then has no share.
        numbers["noise_share"] = pad_sequence([share.softmax(-1) for share in shares], batch_first=True)
        numbers["noise_mixture"] = pad_sequence(list(mixtures), batch_first=True, padding_value=1.0)
        numbers["member_share"] = self.predictor.weights
        beside = likelihood.at({"lacking": np.eye(len(table.may_lack))}).beside
        numbers["beside"] = np.zeros((len(table.may_lack), likelihood.n_targets)) if beside is None else beside
        for name, values in numbers.items():
            self.register_buffer(name, torch.as_tensor(values, dtype=torch.float64))
        known = [] if table.columns is None else table.columns.levels
        self.back = _back_of(regressor, type(self).__name__)
        self.levels = {table.name(j): list(levels) for j, levels in enumerate(known) if levels is not None}
        self.to(self.predictor.device)

    def numbers(self, X):
        """A table as the numbers that the module takes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows, as ``predict`` takes them.

        Returns
        -------
        ndarray of shape (n_samples, n_features) and of float64
            Numbers, and the numbers of levels for categories. Missing cells are NaN.
        """
        return query(self._regressor, X).astype(np.float64)

    def inputs(self, X: Tensor) -> Tensor:
        """Rows (..., n_features) in the units of the models."""
        return self._standardised(self.columns(X.to(self.shift))[0])

    def _standardised(self, columns: Tensor) -> Tensor:
        return ((columns - self.shift) / self.scale).clamp(-FARTHEST, FARTHEST)

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations (n, n_outputs) of rows (n, n_features), in the units of the data."""
        columns, lacking = self.columns(X.to(self.shift))
        unknown = columns.isnan()
        known, beside = self._standardised(torch.where(unknown, 0.0, columns)), lacking @ self.beside
        if self.back is None:
            mean, variance = (column.mT for column in self.predictor.joint(known, joint=False))
            variance = variance * self.target_scale.square() + (self.noise + beside * self.target_scale.square())
            mean = mean * self.target_scale + self.target_shift
        else:
            mean, variance = self._of_targets(self.back, known, beside)
        unknown = unknown.any(1, keepdim=True)
        return torch.where(unknown, torch.nan, mean), torch.where(unknown, torch.nan, variance.sqrt())

    def _of_targets(self, back: Back, X: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances (n, n_outputs) of targets, from those of each component of what models predict."""
        members = zip(self.predictor.marginals(X), self.member_share, self.noise_share, self.noise_mixture, strict=True)
        parts = [self._of_member(back, *member, beside) for member in members]
        # In ONNX, shares are rounded to float32, so that targets far from zero need them to sum to one exactly.
        total = sum(share.sum((0, 1)) for share, _, _ in parts)
        mean = sum((share * within).sum((0, 1)) for share, within, _ in parts) / total
        variance = sum((share * (inner + (within - mean).square())).sum((0, 1)) for share, within, inner in parts)
        return mean, variance / total

    def _of_member(
        self, back: Back, marginals: Marginals, member_share: Tensor, noise_share: Tensor, noise: Tensor, beside: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, means and variances (K, S, n, P) of targets, for each component of a member and of its noise."""
        mean, variance, log_weight = marginals[:3]
        variance = (variance + noise[:, None, None] + beside) * self.target_scale.square()
        within, inner = back((mean * self.target_scale + self.target_shift).expand(variance.shape), variance)
        share = member_share * noise_share[:, None, None] * log_weight.exp()
        return share[..., None].expand(variance.shape), within, inner


@contextmanager
def _silence() -> Iterator[None]:
    """Without PyTorch's messages about its own deprecated functions, and about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec")
            yield
    finally:
        logger.setLevel(level)


def to_onnx(regressor, file):
    """Save a fitted regressor as an ONNX file, which computes means and standard deviations.

    The file has one input, ``X`` of shape (n_samples, n_features). It has two outputs, ``y_mean`` and ``y_std`` of
    shape (n_samples, n_outputs). All are in float64. For categories ``X`` has the numbers of their levels. The file's
    metadata have lists of these under "levels", in JSON. Missing numbers are as in :class:`MomentsModule`.

    With a correction by neighbours all stored rows are searched for the nearest ones, so that the file has them and
    predictions take longer the more there are.

    Parameters
    ----------
    regressor : regressor of this package
        A fitted regressor that :class:`MomentsModule` takes. It must not be an AVDGP, nor have a member that learns
        densities, which regressors may have from 300 rows on: fit with ``objective="elbo"``.
    file : str or path
        Name of the file.

    Raises
    ------
    ImportError
        If onnx or onnxscript is missing.
    TypeError
        If ``regressor`` is not a regressor of this package.
    ValueError
        If the model cannot be exported.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'to_onnx needs onnx and onnxscript: install them with pip install "onnx" "onnxscript".'
        ) from error
    module = MomentsModule(regressor).eval()
    if any(isinstance(layer, AmortisedLayer) for model in module.predictor.models for layer in model.layers):
        own = not method_of(regressor).has_points
        what = "AVDGP" if own else "a member that learns densities, which is an AVDGP"
        cure = "take DSDGP or SOLVEGP" if own else 'fit with objective="elbo"'
        raise ValueError(
            f"to_onnx cannot export {what}, since ONNX has no operations for the systems of equations of each row: "
            f"{cure}."
        )
    module.predictor = fitted(regressor).alone(as_one=True)  # few operations, however many members
    if (correction := module.predictor.correction) is not None:
        correction.local = PlainNeighbours.of(correction.local)
    example = torch.zeros(3, regressor.n_features_in_, dtype=torch.float64, device=module.shift.device)
    rows = {0: torch.export.Dim("n_samples", min=2)}
    with torch.no_grad(), _silence():
        program = torch.export.export(module, (example,), dynamic_shapes=(rows,), strict=False)
        names = {"input_names": ["X"], "output_names": ["y_mean", "y_std"]}
        saved = torch.onnx.export(program, (example,), dynamo=True, verbose=False, **names)
        saved.model.metadata_props["levels"] = json.dumps(module.levels, default=str)
        saved.save(str(file))
