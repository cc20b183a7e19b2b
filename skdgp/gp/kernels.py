"""Kernels: how a GP's values at two places vary together.

A kernel holds D covariance functions, one for each output of a layer, or a single one that all outputs share:

=================================== ====================== =================================
``covariance(X1, X2)``              (..., D, N1, N2)       k_d(x, x') for x in X1 (..., N1, Q) and x' in X2
``diagonal(X)``                     (..., D, N)            k_d(x, x)
``hyperparameters()``               by name                what is learnt, in units that people read
=================================== ====================== =================================

A new kernel defines these. Where a variance σ² is a factor of the whole kernel, it may define instead what is left
without the factor (:meth:`Kernel.relative_covariance`): layers compute with that, and multiply by σ once at the end.
"""

import math

import torch
from scipy.special import gammaincinv
from torch import Tensor, nn

from .correlations import Profile, correlation
from .waves import N_WAVES, Functions, Streams, spread, waves


class Kernel(nn.Module):
    """Covariance functions; see the module's docstring.

    Parameters
    ----------
    n_outputs : int, default=1
        D, number of covariance functions. 1 is a function that all outputs of a layer share.
    """

    unit: Tensor

    def __init__(self, n_outputs: int = 1):
        super().__init__()
        self.n_outputs = n_outputs
        self.register_buffer("unit", torch.ones(n_outputs, device="cpu", dtype=torch.float32))

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Covariances between two sets of points.

        Parameters
        ----------
        X1 : Tensor of shape (..., N1, Q)
        X2 : Tensor of shape (..., N2, Q)

        Returns
        -------
        Tensor of shape (..., D, N1, N2)
        """
        raise NotImplementedError

    def diagonal(self, X: Tensor) -> Tensor:
        """Variances k_d(x, x) at points (..., N, Q), of shape (..., D, N)."""
        raise NotImplementedError

    def forward(self, X1: Tensor, X2: Tensor) -> Tensor:
        """``kernel(X1, X2)`` is its :meth:`covariance`."""
        return self.covariance(X1, X2)

    def hyperparameters(self) -> dict[str, Tensor]:
        """What is learnt, by name; "lengthscale" of shape (D, Q) or (D, 1) where there is one."""
        return {}

    @property
    def deviation(self) -> Tensor:
        """σ (D,), whose square is a factor of the whole kernel; 1 where none is."""
        return self.unit

    @property
    def variance(self) -> Tensor:
        """σ² (D,)."""
        return self.deviation.square()

    def relative_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """:meth:`covariance` divided by σ²."""
        return self.covariance(X1, X2)

    def relative_diagonal(self, X: Tensor) -> Tensor | float:
        """:meth:`diagonal` divided by σ²; a number where it is the same everywhere."""
        return self.diagonal(X)

    def draw(self, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
        """Functions drawn from the prior of zero mean whose covariance is :meth:`relative_covariance`.

        Parameters
        ----------
        streams : Streams
            S of them, one for each draw.
        n_inputs : int
            Q.
        n_outputs : int
            D, independent functions of a draw; those of a shared kernel have the same one.

        Returns
        -------
        callable
            From inputs (S or 1, N, Q) to values (S, N, D).
        """
        raise ValueError(
            f"Functions cannot be drawn with {type(self).__name__}, which does not say how: define its method draw. "
            "A stationary kernel needs no more than frequencies from its spectral density; see skdgp.gp.waves."
        )

    def gradient_variance(self, n_inputs: int) -> Tensor | None:
        """Variances (D, Q) of the prior's partial derivatives, over σ², if they are known and the same everywhere."""
        return None


def rbf(b: Tensor) -> tuple[Tensor, None]:
    """k = exp(−a²/2), h = k."""
    return b.square_().mul_(-0.5).exp_(), None


def matern12(b: Tensor) -> tuple[Tensor, Tensor]:
    """k = exp(−a), h = k/a. Not differentiable at a = 0, where the subgradient 0 is taken."""
    k = b.exp()
    return k, torch.where(b < 0, -k / b, 0.0)


def matern32(b: Tensor) -> tuple[Tensor, Tensor]:
    """k = (1 + a) exp(−a), h = exp(−a)."""
    e = b.exp()
    return torch.addcmul(e, e, b, value=-1.0), e


def matern52(b: Tensor) -> tuple[Tensor, Tensor]:
    """k = (1 + a + a²/3) exp(−a), 3h = (1 + a) exp(−a)."""
    e = b.exp()
    linear = torch.addcmul(e, e, b, value=-1.0)
    return torch.addcmul(linear, e, b.square_(), value=1 / 3), linear


#: Functions of b = −a, which they may overwrite: see :mod:`skdgp.gp.correlations`.
PROFILES = {
    "rbf": Profile(rbf, 1.0),
    "matern12": Profile(matern12, 1.0, smooth=False, nu=0.5),
    "matern32": Profile(matern32, math.sqrt(3.0), nu=1.5),
    "matern52": Profile(matern52, math.sqrt(5.0), 1 / 3, nu=2.5),
}


class StationaryKernel(Kernel):
    """k_d(x, x') = σ_d² profile(‖(x − x') / ℓ_d‖).

    Parameters
    ----------
    profile : {"rbf", "matern12", "matern32", "matern52"}
        Name of the profile.
    n_inputs : int
        Q, dimension of x.
    n_outputs : int, default=1
        D; see :class:`Kernel`.
    ard : bool, default=False
        Whether every input dimension has its own lengthscale.
    lengthscale : float, default=None
        Initial lengthscale; √Q by default, the scale of the distances of standardised inputs.
    variance : float, default=1.0
        Initial σ².

    Attributes
    ----------
    log_lengthscale : Parameter of shape (D, Q) if ``ard`` else (D, 1)
    log_variance : Parameter of shape (D,)
        Logarithms, so that no value of a parameter is invalid.
    """

    def __init__(
        self,
        profile: str,
        n_inputs: int,
        n_outputs: int = 1,
        *,
        ard: bool = False,
        lengthscale: float | None = None,
        variance: float = 1.0,
    ):
        super().__init__(n_outputs)
        if profile not in PROFILES:
            raise ValueError(f"profile={profile!r} is none of {sorted(PROFILES)}: choose one.")
        self.profile = profile
        lengthscale = math.sqrt(n_inputs) if lengthscale is None else lengthscale
        self.log_lengthscale = nn.Parameter(
            self.unit.new_full((n_outputs, n_inputs if ard else 1), math.log(lengthscale))
        )
        self.log_variance = nn.Parameter(self.unit.new_full((n_outputs,), math.log(variance)))

    @property
    def lengthscale(self) -> Tensor:
        """Lengthscales ℓ, of shape (D, Q) or (D, 1)."""
        return self.log_lengthscale.exp()

    @property
    def variance(self) -> Tensor:
        """Variances σ², of shape (D,)."""
        return self.log_variance.exp()

    @property
    def deviation(self) -> Tensor:
        """Standard deviations σ, of shape (D,)."""
        return (0.5 * self.log_variance).exp()

    @property
    def inverse_square(self) -> Tensor:
        """1/ℓ², of shape (D, 1 or Q)."""
        return torch.exp(-2.0 * self.log_lengthscale)

    def hyperparameters(self) -> dict[str, Tensor]:
        """See :meth:`Kernel.hyperparameters`."""
        return {"lengthscale": self.lengthscale, "variance": self.variance}

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`Kernel.covariance`."""
        return self.relative_covariance(X1, X2) * self.variance[..., None, None]

    def diagonal(self, X: Tensor) -> Tensor:
        """σ² everywhere."""
        return self.variance[..., None].expand(*X.shape[:-2], -1, X.shape[-2])

    def relative_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Correlations."""
        profile = PROFILES[self.profile]
        rate = (profile.rate * self.inverse_square.sqrt())[..., None, :]  # c/ℓ, (D, 1, 1 or Q)
        centre = X1.detach().mean(-2, keepdim=True)  # near the origin less is rounded and less cancels
        return correlation((X1 - centre).unsqueeze(-3) * rate, (X2 - centre).unsqueeze(-3) * rate, profile)

    def relative_diagonal(self, X: Tensor) -> float:
        """A correlation of 1."""
        return 1.0

    def frequencies(self, points: Tensor) -> Tensor:
        """Frequencies from the spectral density, at quantiles that ``points`` (..., D, F, Q + 1) in [0, 1] say.

        That density is a Gaussian's for "rbf", and for Matérn's kernels Student's t, which is a Gaussian whose
        precision is random: Gamma(ν, ν).
        """
        normal, nu = torch.special.ndtri(points[..., 1:]), PROFILES[self.profile].nu
        if math.isfinite(nu):
            precision = gammaincinv(nu, points[..., :1].cpu().numpy()) / nu
            normal = normal * torch.as_tensor(precision, device=points.device).rsqrt()
        return normal / self.lengthscale[:, None]

    def draw(self, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
        """Sums of waves; see :mod:`skdgp.gp.waves`."""
        n_frequencies = N_WAVES if n_outputs == self.n_outputs else N_WAVES // 2
        points = spread(streams, self.n_outputs, n_frequencies, n_inputs + 1)
        return waves(streams, self.frequencies(points), n_outputs)

    def gradient_variance(self, n_inputs: int) -> Tensor | None:
        """−k''(0)/ℓ²; none for "matern12", whose functions have no derivative."""
        profile = PROFILES[self.profile]
        if profile.nu <= 0.5:
            return None
        return (profile.slope * profile.rate**2 * self.inverse_square).expand(-1, n_inputs)


def make_kernel(kernel, n_inputs: int, n_outputs: int = 1, *, ard: bool = False) -> Kernel:
    """The kernel that ``kernel`` stands for.

    Parameters
    ----------
    kernel : str or callable
        Name of a profile, or a function that makes a kernel of the arguments that follow, such as its class.
    n_inputs, n_outputs : int
        Q and D.
    ard : bool, default=False
        Whether every input dimension is to have its own lengthscale.

    Raises
    ------
    ValueError
        If ``kernel`` makes something else.
    """
    if isinstance(kernel, str):
        return StationaryKernel(kernel, n_inputs, n_outputs, ard=ard)
    if isinstance(kernel, Kernel):
        raise ValueError(
            f"kernel is a {type(kernel).__name__} already, and every layer needs one of its own: pass what makes it, "
            "such as its class."
        )
    made = kernel(n_inputs, n_outputs, ard=ard)
    if not isinstance(made, Kernel):
        raise ValueError(f"kernel={kernel!r} made a {type(made).__name__}: it must make a skdgp.gp.kernels.Kernel.")
    return made
