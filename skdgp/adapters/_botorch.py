"""A fitted regressor as a model of BoTorch: acquisition functions over its posterior, with gradients."""

import torch
from torch import Tensor

try:
    from botorch.models.model import Model
    from botorch.posteriors.gpytorch import GPyTorchPosterior
    from gpytorch.distributions import MultivariateNormal
    from linear_operator import to_linear_operator
except ImportError as error:
    raise ImportError('BoTorchModel needs BoTorch: install it with pip install "botorch".') from error

from ..inference.joint import joint_moments
from ._export import MomentsModule

#: Added to variances, over that of the targets: with less, covariances of almost noiseless models have no Cholesky
#: factor to rounding.
JITTER = 1e-9


class BoTorchModel(Model):
    """A fitted regressor with one output, as BoTorch's acquisition functions want it.

    Posteriors are Gaussian, with the means and covariances of ``predict(X, return_cov=True, latent=True)``, and can be
    differentiated with respect to ``X``. A new observation needs a new fit: there is no ``condition_on_observations``.

    Parameters
    ----------
    regressor : regressor of this package
        Fitted, to one target and to numbers of which none was missing, with noise that is added.

    Examples
    --------
    >>> import torch
    >>> from botorch.acquisition import LogExpectedImprovement
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.adapters import BoTorchModel
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = BoTorchModel(SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y))
    >>> improvement = LogExpectedImprovement(model, best_f=float(y.max()))
    >>> improvement(torch.zeros(3, 1, 1, dtype=torch.float64)).shape  # three candidates, one at a time
    torch.Size([3])
    """

    def __init__(self, regressor):
        super().__init__()
        self.moments = MomentsModule(regressor)
        if len(self.moments.target_scale) > 1:
            raise ValueError(
                f"BoTorchModel takes models of one output, got one of {len(self.moments.target_scale)}: fit one for "
                "each output, and put them into botorch.models.ModelList."
            )

    @property
    def num_outputs(self):
        """1."""
        return 1

    @property
    def batch_shape(self):
        """None: a single model."""
        return torch.Size([])

    def posterior(self, X, output_indices=None, observation_noise=False, posterior_transform=None):
        """The joint posterior of the function values of some rows.

        Parameters
        ----------
        X : Tensor of shape (..., q, n_features)
            In the units of ``fit``; q rows are looked at jointly.
        output_indices : list of int, default=None
            [0] or None.
        observation_noise : bool, default=False
            Whether of observations instead.
        posterior_transform : PosteriorTransform, default=None
            Applied in the end.

        Returns
        -------
        GPyTorchPosterior
        """
        *batch, q, n_features = X.shape
        rows = self.moments.inputs(X).reshape(-1, q, n_features)
        if q == 1:  # rows have nothing to do with one another
            mean, covariance = self._moments(rows[:, 0], joint=False)
        else:
            mean, covariance = (torch.stack(each) for each in zip(*(self._moments(each) for each in rows), strict=True))
        shift, scale = self.moments.target_shift, self.moments.target_scale
        mean, covariance = mean * scale + shift, covariance * scale.square()
        added = JITTER * scale.square() + (self.moments.noise if observation_noise else 0.0)
        covariance = covariance + added * torch.eye(q, dtype=covariance.dtype, device=covariance.device)
        covariance = to_linear_operator(covariance.reshape(*batch, q, q).to(X))  # factorised when it is needed
        found = MultivariateNormal(mean.reshape(*batch, q).to(X), covariance)
        posterior = GPyTorchPosterior(found)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def _moments(self, rows: Tensor, *, joint: bool = True) -> tuple[Tensor, Tensor]:
        """Means (n,) and the covariance (n, n) of rows; or means (n, 1) and variances (n, 1, 1), each for itself."""
        mean, covariance = joint_moments(list(self.moments.models), rows, joint=joint)
        return (mean[0], covariance[0]) if joint else (mean[0][:, None], covariance[0][:, None, None])
