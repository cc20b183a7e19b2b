"""A fitted regressor as a model of BoTorch, for acquisition functions with gradients."""

from copy import deepcopy

import torch
from torch import Tensor

try:
    from botorch.models.model import Model
    from botorch.posteriors.gpytorch import GPyTorchPosterior
    from gpytorch.distributions import MultivariateNormal
    from linear_operator import to_linear_operator
except ImportError as error:
    raise ImportError('BoTorchModel needs BoTorch: install it with pip install "botorch".') from error

from ..estimators._fitted import built_with
from ._export import MomentsModule

#: Added to variances, as a share of the targets' variance. With less, rounding errors leave the covariances of almost
#: noiseless models without a Cholesky factor.
JITTER = 1e-9


class BoTorchModel(Model):
    """A fitted regressor with one output as a BoTorch model, for BoTorch's acquisition functions.

    Posteriors are Gaussian, with the means and covariances of ``predict(X, return_cov=True, latent=True)``. They can be
    differentiated with respect to ``X``.

    Parameters
    ----------
    regressor : regressor of this package
        A regressor that has been fitted to one target and to numeric features without missing cells. Its likelihood
        must have additive noise, as "gaussian" has, and it has no ``target_transform``.

    Raises
    ------
    TypeError
        If ``regressor`` is not a regressor of this package.
    ValueError
        If it does not meet the conditions above.

    Examples
    --------
    >>> import torch
    >>> from botorch.acquisition import LogExpectedImprovement
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.adapters import BoTorchModel
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = BoTorchModel(
    ...     SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
    ... )
    >>> improvement = LogExpectedImprovement(model, best_f=float(y.max()))
    >>> improvement(
    ...     torch.zeros(3, 1, 1, dtype=torch.float64)
    ... ).shape  # three candidates, one at a time
    torch.Size([3])
    """

    def __init__(self, regressor):
        super().__init__()
        self.moments, self.regressor = MomentsModule(regressor), regressor
        if self.moments.back is not None:
            raise ValueError(
                "BoTorchModel takes models whose posteriors are Gaussian, but this one has target_transform="
                f"{built_with(regressor, 'target_transform')!r}: fit one with target_transform=None."
            )
        if len(self.moments.shift) > regressor.n_features_in_ or self.moments.levels:
            raise ValueError(
                "BoTorchModel takes models of numbers, but X had categories or missing cells in fit: encode and fill "
                "them before, in a pipeline."
            )
        if len(self.moments.target_scale) > 1:
            raise ValueError(
                f"BoTorchModel takes models of one output, got one of {len(self.moments.target_scale)}: fit one for "
                "each output, and put them into botorch.models.ModelList."
            )

    @property
    def num_outputs(self):
        """Number of outputs, which is 1."""
        return 1

    @property
    def batch_shape(self):
        """Empty, since there is a single model."""
        return torch.Size([])

    def posterior(self, X, output_indices=None, observation_noise=False, posterior_transform=None):
        """The joint posterior of the function's values at some rows.

        Parameters
        ----------
        X : Tensor of shape (..., q, n_features)
            Rows in the units of ``fit``. The posterior is joint over each group of q rows.
        output_indices : list of int, default=None
            [0] or None, since there is one output.
        observation_noise : bool or Tensor of shape (..., q, 1), default=False
            Whether to return the posterior of observations instead. A tensor has the variances of their noise.
        posterior_transform : PosteriorTransform, default=None
            Transform that is applied to the posterior.

        Returns
        -------
        GPyTorchPosterior
            The posterior.

        Raises
        ------
        ValueError
            If there are other outputs in ``output_indices``, if ``X`` or the noise has another shape, or if ``X`` has
            no rows.
        """
        if output_indices is not None and torch.as_tensor(output_indices).reshape(-1).tolist() != [0]:
            raise ValueError(
                f"output_indices={output_indices!r} asks for other outputs than 0, the only one: leave it out."
            )
        rows = self.moments.inputs(X)
        *batch, q, n_features = rows.shape
        rows = rows.reshape(-1, q, n_features)
        if q == 1:  # single rows need no joint covariance
            mean, covariance = self._moments(rows[:, 0], joint=False)
        else:
            mean, covariance = map(torch.stack, zip(*map(self._moments, rows), strict=True))
        shift, scale = self.moments.target_shift, self.moments.target_scale
        mean, covariance = mean * scale + shift, covariance * scale.square()
        added = (JITTER * scale.square() + self._noise(observation_noise, X)).expand(*batch, q)
        covariance = covariance.reshape(*batch, q, q) + torch.diag_embed(added)
        covariance = to_linear_operator(covariance.to(X))  # it is factorised when needed
        posterior = GPyTorchPosterior(MultivariateNormal(mean.reshape(*batch, q).to(X), covariance))
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def _noise(self, observation_noise: bool | Tensor, X: Tensor) -> Tensor:
        """Variances (1,) or (..., q) of the noise of observations at rows (..., q, n_features)."""
        if not isinstance(observation_noise, Tensor):
            return self.moments.noise if observation_noise else torch.zeros_like(self.moments.noise)
        try:
            return observation_noise.to(self.moments.noise).expand(*X.shape[:-1], 1)[..., 0]
        except RuntimeError as error:
            raise ValueError(
                f"observation_noise of shape {tuple(observation_noise.shape)} does not match X of shape "
                f"{tuple(X.shape)}: give variances of shape {(*X.shape[:-1], 1)}, or True."
            ) from error

    def condition_on_observations(self, X, Y, noise=None, **kwargs):
        """A model that has also learnt from new observations, by ``update`` of a copy of the regressor.

        Parameters
        ----------
        X : Tensor of shape (q, n_features)
            New rows in the units of ``fit``.
        Y : Tensor of shape (q, 1)
            Their targets.
        noise : None
            The noise is that of the regressor.
        **kwargs
            Not used.

        Returns
        -------
        BoTorchModel
            The new model. This one stays as it is.

        Raises
        ------
        ValueError
            If ``X`` has batches, if ``noise`` is given, or if no part of the regressor can learn in this way.
        """
        if X.dim() != 2 or Y.shape != (len(X), 1):
            raise ValueError(
                f"X of shape {tuple(X.shape)} and Y of shape {tuple(Y.shape)} must be (q, n_features) and (q, 1): add "
                "one batch of observations at a time."
            )
        if noise is not None:
            raise ValueError("noise must be None, since the regressor has learnt its own: leave it out.")
        x, y = (values.detach().cpu().numpy() for values in (X, Y[:, 0]))
        return type(self)(deepcopy(self.regressor).update(x, y))

    def _moments(self, rows: Tensor, *, joint: bool = True) -> tuple[Tensor, Tensor]:
        """Means (n,) and joint covariance (n, n) of rows; or means (n, 1) and variances (n, 1, 1) of single rows."""
        mean, covariance = self.moments.predictor.joint(rows, joint=joint)
        return (mean[0], covariance[0]) if joint else (mean[0][:, None], covariance[0][:, None, None])
