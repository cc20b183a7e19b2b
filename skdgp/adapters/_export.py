"""Mean and deviation of a fitted regressor as a PyTorch module, which can be exported."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..estimators._fitted import built_with, fitted, learnt
from ..estimators._parameters import method_of
from ..estimators._regression import DeepGPRegressor


def check_plain(regressor, what: str) -> None:
    """ValueError if a fitted regressor does more than a module of plain tensors can do, TypeError if it is none."""
    if not isinstance(regressor, DeepGPRegressor):
        raise TypeError(f"{what} takes regressors of skdgp, got {type(regressor).__name__}: give a fitted one.")
    predictor = fitted(regressor)
    table = learnt(regressor).table
    if table.encoding.groups is not None or table.columns is not None:
        raise ValueError(
            f"{what} takes models of numbers, but X had categories or missing cells in fit: encode and fill them "
            "before, in a pipeline."
        )
    if table.trends:
        raise ValueError(
            f"{what} takes models of PyTorch alone, but this one has trend={built_with(regressor, 'trend')!r}: fit "
            "with trend=None."
        )
    transformed = table.targets.transformer is not None
    if transformed or not predictor.likelihoods[0].additive:
        raise ValueError(
            f"{what} takes models whose noise is added and the same everywhere, but this one has "
            f"likelihood={built_with(regressor, 'likelihood')!r} and target_transform="
            f'{built_with(regressor, "target_transform")!r}: take "gaussian" and None.'
        )


class MomentsModule(nn.Module):
    """A PyTorch module in float64 that computes means and standard deviations of observations.

    It computes the same as ``predict(X, return_std=True)``, and can be differentiated. ``torch.export`` can export it
    for DSDGP and SOLVEGP, but not for AVDGP. A regressor with a correction by neighbours cannot be exported either,
    because a search tree finds the nearest rows, which PyTorch cannot record. Fit with ``n_neighbors=0`` to export.

    Parameters
    ----------
    regressor : regressor of this package
        A regressor that has been fitted to numeric features without missing cells. Its likelihood must have additive
        noise, as "gaussian" has, and it has no ``target_transform``.

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

    @torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
    def __init__(self, regressor):
        super().__init__()
        check_plain(regressor, type(self).__name__)
        self.predictor, units = fitted(regressor).alone(), learnt(regressor).table.units
        target_units = self.predictor.likelihoods[0].units
        numbers = {"shift": units.shift, "scale": units.scale, "noise": regressor._mean_noise_variance()}
        numbers |= {"target_shift": target_units.shift, "target_scale": target_units.scale}
        for name, values in numbers.items():
            self.register_buffer(name, torch.as_tensor(values, dtype=torch.float64, device=self.predictor.device))

    def inputs(self, X: Tensor) -> Tensor:
        """Rows (n, n_features) in the units of the models."""
        return (X.to(self.shift) - self.shift) / self.scale

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations (n, n_outputs) of rows (n, n_features), in the units of the data."""
        mean, variance = self.predictor.joint(self.inputs(X), joint=False)
        std = (variance.mT * self.target_scale.square() + self.noise).sqrt()
        return mean.mT * self.target_scale + self.target_shift, std


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
    shape (n_samples, n_outputs). All are in float64.

    Parameters
    ----------
    regressor : regressor of this package
        A fitted regressor that :class:`MomentsModule` takes. It must not be an AVDGP, nor be corrected by neighbours.
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
    if not method_of(regressor).has_points or regressor.neighbors_ is not None:
        raise ValueError(
            "to_onnx cannot export AVDGP, nor a correction by neighbours, since ONNX has no operations for them. Got "
            f"{type(regressor).__name__}, {'without' if regressor.neighbors_ is None else 'with'} neighbours: take "
            "DSDGP or SOLVEGP with n_neighbors=0."
        )
    example = torch.zeros(3, regressor.n_features_in_, dtype=torch.float64, device=module.shift.device)
    rows = {0: torch.export.Dim("n_samples", min=2)}
    with torch.no_grad(), _silence():
        program = torch.export.export(module, (example,), dynamic_shapes=(rows,), strict=False)
        names = {"input_names": ["X"], "output_names": ["y_mean", "y_std"]}
        torch.onnx.export(program, (example,), str(file), dynamo=True, verbose=False, **names)
