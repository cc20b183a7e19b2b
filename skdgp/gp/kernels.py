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
from collections.abc import Sequence
from typing import cast

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

    def places(self, X: Tensor) -> Tensor:
        """What inducing points are like (N', Q'), of some inputs (N, Q): inputs, but where a kernel says otherwise."""
        return X

    def numbers(self) -> int:
        """Numbers that a covariance of an inducing point and an input is made of."""
        return 1

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

    def log_prior(self) -> Tensor:
        """Logarithm of the density of hyperparameters before there are data, up to a constant; flat by default."""
        return self.unit.new_zeros(())


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


class ScaledKernel(Kernel):
    """σ_d² times a function that needs no variance of its own: subclasses say what is left without the factor.

    Attributes
    ----------
    log_variance : Parameter of shape (D,)
    """

    log_variance: Tensor

    @property
    def variance(self) -> Tensor:
        """Variances σ², of shape (D,)."""
        return self.log_variance.exp()

    @property
    def deviation(self) -> Tensor:
        """Standard deviations σ, of shape (D,)."""
        return (0.5 * self.log_variance).exp()

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`Kernel.covariance`."""
        return self.relative_covariance(X1, X2) * self.variance[..., None, None]


#: Where the prior of logarithms of lengthscales has its peak, beyond that of √Q: standardised points of Q features are
#: some √Q apart, so that it favours no number of features (Hvarfner, Hellsten and Nardi, ICML 2024). Without a prior
#: features that do not matter get short lengthscales where rows are few; and its tails are heavy, lest it hold those of
#: features that do not matter at all back from growing without end.
PRIOR_SHIFT = 0.5


class StationaryKernel(ScaledKernel):
    """k_d(x, x') = σ_d² profile(‖(x − x') / ℓ_d‖).

    Parameters
    ----------
    profile : {"rbf", "matern12", "matern32", "matern52"}
        Name of the profile.
    n_inputs : int
        Q, dimension of x.
    n_outputs : int, default=1
        D; see :class:`Kernel`.
    ard : bool or sequence of int, default=False
        Whether every input dimension has its own lengthscale; or the number of the group that each belongs to, from 0
        on: the inputs of a group share one, and stand for a single quantity.
    lengthscale : float, default=None
        Initial lengthscale; √G by default, G the number of groups, or of inputs where there are none: the scale of the
        distances of standardised inputs.
    variance : float, default=1.0
        Initial σ².

    Attributes
    ----------
    log_lengthscale : Parameter of shape (D, G) if ``ard`` else (D, 1)
    log_variance : Parameter of shape (D,)
        Logarithms, so that no value of a parameter is invalid.
    """

    groups: tuple[int, ...] | None = None

    def __init__(
        self,
        profile: str,
        n_inputs: int,
        n_outputs: int = 1,
        *,
        ard: bool | Sequence[int] = False,
        lengthscale: float | None = None,
        variance: float = 1.0,
    ):
        super().__init__(n_outputs)
        if profile not in PROFILES:
            raise ValueError(f"profile={profile!r} is none of {sorted(PROFILES)}: choose one.")
        self.profile = profile
        self.n_inputs = n_inputs
        if not isinstance(ard, bool):
            self.groups = tuple(int(group) for group in ard)
        lengthscale = math.sqrt(self.n_quantities) if lengthscale is None else lengthscale
        self.log_lengthscale = nn.Parameter(
            self.unit.new_full((n_outputs, self.n_quantities if ard else 1), math.log(lengthscale))
        )
        self.log_variance = nn.Parameter(self.unit.new_full((n_outputs,), math.log(variance)))

    @property
    def n_quantities(self) -> int:
        """G, the number of groups, or of inputs where there are none."""
        return self.n_inputs if self.groups is None else max(self.groups) + 1

    @property
    def lengthscale(self) -> Tensor:
        """Lengthscales ℓ, of shape (D, Q) or (D, 1)."""
        return self._of_inputs(self.log_lengthscale.exp())

    @property
    def inverse_square(self) -> Tensor:
        """1/ℓ², of shape (D, 1 or Q)."""
        return self._of_inputs(torch.exp(-2.0 * self.log_lengthscale))

    def _of_inputs(self, numbers: Tensor) -> Tensor:
        """Numbers of every input (D, Q), from those of groups, where there are some."""
        return numbers if self.groups is None else numbers[..., self.groups]

    def hyperparameters(self) -> dict[str, Tensor]:
        """See :meth:`Kernel.hyperparameters`; of a group its one lengthscale."""
        return {"lengthscale": self.log_lengthscale.exp(), "variance": self.variance}

    def log_prior(self) -> Tensor:
        """log ℓ − log √G − ½ ~ Cauchy(0, 1)."""
        shift = self.log_lengthscale - 0.5 * math.log(self.n_quantities) - PRIOR_SHIFT
        return -shift.square().log1p().sum()

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


class LinearKernel(ScaledKernel):
    """k_d(x, x') = σ_d² x·x'/Q: linear functions through the origin, of variance σ² where features have variance one.

    Beyond a box they stay what they are at its surface. A line that goes on for ever makes much of a row whose features
    are far from all others.

    Parameters
    ----------
    n_inputs : int
        Q, dimension of x.
    n_outputs : int, default=1
        D; see :class:`Kernel`.
    variance : float, default=1.0
        Initial σ².
    low, high : Tensor of shape (Q,), default=infinity
        Opposite corners of the box.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int = 1,
        *,
        variance: float = 1.0,
        low: Tensor | None = None,
        high: Tensor | None = None,
    ):
        super().__init__(n_outputs)
        self.n_inputs = n_inputs
        self.log_variance = nn.Parameter(self.unit.new_full((n_outputs,), math.log(variance)))
        infinity = self.unit.new_full((n_inputs,), math.inf)
        self.register_buffer("low", -infinity if low is None else low.clone())
        self.register_buffer("high", infinity if high is None else high.clone())

    def hyperparameters(self) -> dict[str, Tensor]:
        """See :meth:`Kernel.hyperparameters`."""
        return {"variance": self.variance}

    def diagonal(self, X: Tensor) -> Tensor:
        """See :meth:`Kernel.diagonal`."""
        return self.relative_diagonal(X) * self.variance[..., None]

    def relative_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """x·x'/Q, of the nearest points of the box."""
        products = (self._inside(X1) / self.n_inputs) @ self._inside(X2).mT
        return products.unsqueeze(-3).expand(*products.shape[:-2], self.n_outputs, -1, -1)

    def relative_diagonal(self, X: Tensor) -> Tensor:
        """|x|²/Q."""
        return self._inside(X).square().mean(-1).unsqueeze(-2).expand(*X.shape[:-2], self.n_outputs, -1)

    def draw(self, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
        """Slopes."""
        slopes = streams.normal(n_outputs, n_inputs) / math.sqrt(self.n_inputs)
        return lambda x: (slopes @ self._inside(x).mT).mT

    def gradient_variance(self, n_inputs: int) -> Tensor | None:
        """1/Q; none where there is a box, beyond which functions have no slope."""
        if self.low.isfinite().any() or self.high.isfinite().any():
            return None
        return self.unit.new_full((self.n_outputs, n_inputs), 1 / self.n_inputs)

    def _inside(self, X: Tensor) -> Tensor:
        """The nearest points of the box."""
        return X.clamp(self.low, self.high)


class SumKernel(Kernel):
    """The sum of kernels: a function of the one and a function of the other, added up.

    Parameters
    ----------
    kernels : sequence of Kernel
        With the same number of outputs.
    """

    def __init__(self, kernels: Sequence[Kernel]):
        super().__init__(kernels[0].n_outputs)
        self.kernels = nn.ModuleList(kernels)

    @property
    def parts(self) -> Sequence[Kernel]:
        """The kernels, as what they are."""
        return cast(Sequence[Kernel], self.kernels)

    def hyperparameters(self) -> dict[str, Tensor]:
        """Those of the first kernel that has them by that name."""
        return {name: value for part in reversed(self.parts) for name, value in part.hyperparameters().items()}

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`Kernel.covariance`."""
        return sum((part.covariance(X1, X2) for part in self.parts[1:]), self.parts[0].covariance(X1, X2))

    def diagonal(self, X: Tensor) -> Tensor:
        """See :meth:`Kernel.diagonal`."""
        return torch.stack([part.diagonal(X) for part in self.parts]).sum(0)

    def draw(self, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
        """A draw of each."""
        draws = [(part.deviation, part.draw(streams, n_inputs, n_outputs)) for part in self.parts]
        return lambda x: torch.stack([deviation * function(x) for deviation, function in draws]).sum(0)

    def gradient_variance(self, n_inputs: int) -> Tensor | None:
        """The sum, if every kernel has one."""
        found = [part.gradient_variance(n_inputs) for part in self.parts]
        known = [
            each * part.variance[:, None] for each, part in zip(found, self.parts, strict=True) if each is not None
        ]
        return torch.stack(known).sum(0) if len(known) == len(found) else None

    def log_prior(self) -> Tensor:
        """The sum."""
        return torch.stack([part.log_prior() for part in self.parts]).sum()


def make_kernel(
    kernel, n_inputs: int, n_outputs: int = 1, *, ard: bool = False, groups: Sequence[int] | None = None
) -> Kernel:
    """The kernel that ``kernel`` stands for.

    Parameters
    ----------
    kernel : str or callable
        Name of a profile, or a function that makes a kernel of the arguments that follow, such as its class.
    n_inputs, n_outputs : int
        Q and D.
    ard : bool, default=False
        Whether every input dimension is to have its own lengthscale.
    groups : sequence of int, default=None
        Which inputs are to share one then, if ``kernel`` is a name; see :class:`StationaryKernel`.

    Raises
    ------
    ValueError
        If ``kernel`` makes something else.
    """
    if isinstance(kernel, str):
        return StationaryKernel(kernel, n_inputs, n_outputs, ard=groups if ard and groups is not None else ard)
    if isinstance(kernel, Kernel):
        raise ValueError(
            f"kernel is a {type(kernel).__name__} already, and every layer needs one of its own: pass what makes it, "
            "such as its class."
        )
    made = kernel(n_inputs, n_outputs, ard=ard)
    if not isinstance(made, Kernel):
        raise ValueError(f"kernel={kernel!r} made a {type(made).__name__}: it must make a skdgp.gp.kernels.Kernel.")
    return made
