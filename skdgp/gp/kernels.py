"""Kernels: how a GP's values at two places vary together.

A kernel holds D covariance functions, one for each output of a layer, or a single one that all outputs share:

=================================== ====================== =================================
``covariance(X1, X2)``              (..., D, N1, N2)       k_d(x, x') for x in X1 (..., N1, Q) and x' in X2
``diagonal(X)``                     (..., D, N)            k_d(x, x)
``hyperparameters()``               by name                the numbers that are learnt, such as lengthscales
=================================== ====================== =================================

A new kernel defines these three methods. If a variance σ² is a factor of the whole kernel, it may instead define the
kernel without the factor (:meth:`Kernel.relative_covariance`). Layers compute with that, and multiply by σ once at the
end.
"""

import math
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch
from scipy.special import gammaincinv
from torch import Tensor, nn

from .correlations import Profile, centred_correlation
from .devices import columns_of
from .waves import N_WAVES, Functions, Streams, UndrawnError, more_of_the_tail, spread, waves, weighed_rows


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
        """The numbers that are learnt, by name; "lengthscale", if there is one, has the shape (D, Q) or (D, 1)."""
        return {}

    @property
    def deviation(self) -> Tensor:
        """σ (D,), whose square is a factor of the whole kernel; 1 if there is no such factor."""
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
        """Candidates (N', Q') for inducing points from inputs (N, Q): the inputs, unless a kernel has others."""
        return X

    def numbers(self) -> int:
        """Number of terms whose sum is a covariance of an inducing point and an input."""
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
            D, number of independent functions in a draw. If outputs share the kernel, all functions have this kernel.

        Returns
        -------
        callable
            From inputs (S or 1, N, Q) to values (S, N, D).
        """
        raise UndrawnError(
            f"Functions cannot be drawn with {type(self).__name__}, which does not say how: define its method draw. "
            "A stationary kernel needs no more than frequencies from its spectral density; see skdgp.gp.waves."
        )

    def gradient_variance(self, n_inputs: int) -> Tensor | None:
        """Variances (D, Q) of the prior's partial derivatives, over σ², if they are known and the same everywhere."""
        return None

    def log_prior(self) -> Tensor:
        """Logarithm of the prior density of hyperparameters, up to a constant; flat by default."""
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


def gamma_quantiles(shape: float | np.ndarray, points: Tensor) -> Tensor:
    """Quantiles, at ``points`` in [0, 1], of the gamma distribution that has this shape and the mean one."""
    return torch.as_tensor(gammaincinv(shape, points.cpu().numpy()) / shape, dtype=points.dtype, device=points.device)


def unit_frequencies(profile: str, points: Tensor) -> Tensor:
    """Frequencies (..., F, Q) from the spectral density for a lengthscale of one.

    They are quantiles at ``points`` (..., F, Q + 1) in [0, 1]. The density is Gaussian for "rbf". For Matérn kernels it
    is Student's t, which is a Gaussian whose precision is random: Gamma(ν, ν).
    """
    normal, nu = torch.special.ndtri(points[..., 1:]), PROFILES[profile].nu
    return normal * gamma_quantiles(nu, points[..., :1]).rsqrt() if math.isfinite(nu) else normal


class ScaledKernel(Kernel):
    """Kernel that is σ_d² times a function without a variance of its own, which subclasses define.

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


#: Lengthscales have a prior, since with few rows features that do not matter would get short ones. The logarithm of a
#: lengthscale is most likely to be log √Q plus this number. Standardised points of Q features are some √Q apart, so
#: that the prior suits any number of features (Hvarfner, Hellsten and Nardi, ICML 2024). Its tails are heavy, so that
#: lengthscales of features that do not matter can still grow without end.
PRIOR_SHIFT = 0.5


#: Largest relative difference of a variance from the covariance of a point with itself, in a kernel of the user's.
SAME_VARIANCE = 1e-2


class StationaryKernel(ScaledKernel):
    """Stationary kernel k_d(x, x') = σ_d² profile(‖(x − x') / ℓ_d‖).

    Parameters
    ----------
    profile : {"rbf", "matern12", "matern32", "matern52"}
        Name of the profile.
    n_inputs : int
        Q, dimension of x.
    n_outputs : int, default=1
        D; see :class:`Kernel`.
    ard : bool or sequence of int, default=False
        Whether each input dimension has its own lengthscale. A sequence has the number of each input's group, from 0
        on. The inputs of a group stand for a single quantity, and share a lengthscale.
    lengthscale : float, default=None
        Initial lengthscale. The default is √G, which is a typical distance of standardised inputs. G is the number of
        groups, or of inputs if there are no groups.
    variance : float, default=1.0
        Initial σ².

    Attributes
    ----------
    log_lengthscale : Parameter of shape (D, G) if ``ard`` else (D, 1)
    log_variance : Parameter of shape (D,)
        Logarithms, so that no value of a parameter is invalid.
    """

    stackable = True

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
        if not isinstance(ard, bool | np.bool_):
            self.groups = tuple(int(group) for group in ard)
        lengthscale = math.sqrt(self.n_quantities) if lengthscale is None else lengthscale
        self.log_lengthscale = nn.Parameter(
            self.unit.new_full((n_outputs, self.n_quantities if ard else 1), math.log(lengthscale))
        )
        self.log_variance = nn.Parameter(self.unit.new_full((n_outputs,), math.log(variance)))

    @property
    def n_quantities(self) -> int:
        """G, the number of groups, or of inputs if there are no groups."""
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
        """Numbers of each input (D, Q), from those of groups (D, G) if there are any."""
        return numbers if self.groups is None else columns_of(numbers, self.groups)

    def hyperparameters(self) -> dict[str, Tensor]:
        """See :meth:`Kernel.hyperparameters`; a group has one lengthscale."""
        return {"lengthscale": self.log_lengthscale.exp(), "variance": self.variance}

    def log_prior(self) -> Tensor:
        """Log density of the prior log ℓ − log √G − ½ ~ Cauchy(0, 1)."""
        return self.log_prior_of_each().sum()

    def log_prior_of_each(self) -> Tensor:
        """The same for each output, (D,)."""
        shift = self.log_lengthscale - 0.5 * math.log(self.n_quantities) - PRIOR_SHIFT
        return -shift.square().log1p().sum(-1)

    def diagonal(self, X: Tensor) -> Tensor:
        """σ² everywhere."""
        return self.variance[..., None].expand(*X.shape[:-2], -1, X.shape[-2])

    def relative_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Correlations (..., D, N1, N2)."""
        return centred_correlation(X1, X2, self.inverse_square.sqrt(), PROFILES[self.profile])

    def relative_diagonal(self, X: Tensor) -> float:
        """A correlation of 1."""
        return 1.0

    def dims(self, n_inputs: int) -> int:
        """Number of uniform random numbers from which a frequency is computed."""
        return n_inputs + 1

    def frequencies(self, points: Tensor) -> Tensor:
        """Frequencies (..., D, F, Q) from the spectral density; see :func:`unit_frequencies`."""
        return unit_frequencies(self.profile, points) / self.lengthscale[:, None]

    def draw(self, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
        """Functions that are sums of waves; see :mod:`skdgp.gp.waves`."""
        n_frequencies = N_WAVES if n_outputs == self.n_outputs else N_WAVES // 2
        points = spread(streams, self.n_outputs, n_frequencies, self.dims(n_inputs))
        weight = None
        if math.isfinite(PROFILES[self.profile].nu):
            points, weight = more_of_the_tail(points)
        return waves(streams, self.frequencies(points), n_outputs, weight)

    def gradient_variance(self, n_inputs: int) -> Tensor | None:
        """Variances −k''(0)/ℓ²; None for "matern12", whose functions have no derivative."""
        profile = PROFILES[self.profile]
        if profile.nu <= 0.5:
            return None
        return (profile.slope * profile.rate**2 * self.inverse_square).expand(-1, n_inputs)


def by_name(kernel: Kernel) -> TypeGuard[StationaryKernel]:
    """Whether formulas of the profiles hold for a kernel. A derived class may have changed them.

    Code that uses these formulas instead of the kernel's methods asks this first.
    """
    return type(kernel) is StationaryKernel


class LinearKernel(ScaledKernel):
    """Kernel of linear functions through the origin, k_d(x, x') = σ_d² x·x'/Q.

    Functions have the variance σ² if features have variance one. With a box they are linear inside of it. Outside, a
    function goes on from its value b at the nearest point of the box by slopes of its own, which are independent of
    those inside. These end where a feature x is the width of the box away from it:

        k_d(x, x') = σ_d² (b·b' + o·o')/Q,    b the nearest point of the box, o = nearest point of the wider box − b.

    So what rows in the box say of the slopes is no knowledge of the values outside: their mean stays as it is at the
    edge, and their variance grows. A row far from all others gets neither an extreme value nor an extreme variance.

    Parameters
    ----------
    n_inputs : int
        Q, dimension of x.
    n_outputs : int, default=1
        D; see :class:`Kernel`.
    variance : float, default=1.0
        Initial σ².
    low, high : Tensor of shape (Q,), default=infinity
        Opposite corners of the box. Pass both of them, or none.
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
        self.boxed = low is not None and high is not None
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
        """(b·b' + o·o')/Q; see the class."""
        products = (self._split(X1) / self.n_inputs) @ self._split(X2).mT
        return products.unsqueeze(-3).expand(*products.shape[:-2], self.n_outputs, -1, -1)

    def relative_diagonal(self, X: Tensor) -> Tensor:
        """(|b|² + |o|²)/Q."""
        squares = self._split(X).square().sum(-1) / self.n_inputs
        return squares.unsqueeze(-2).expand(*X.shape[:-2], self.n_outputs, -1)

    def draw(self, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
        """Linear functions with random slopes."""
        n_slopes = 2 * n_inputs if self.boxed else n_inputs
        slopes = streams.normal(n_outputs, n_slopes) / math.sqrt(self.n_inputs)
        return lambda x: weighed_rows(self._split(x)[:, None], slopes).mT

    def gradient_variance(self, n_inputs: int) -> Tensor | None:
        """Variances 1/Q; None if there is a box, at whose edges functions have no slope."""
        return None if self.boxed else self.unit.new_full((self.n_outputs, n_inputs), 1 / self.n_inputs)

    def _split(self, X: Tensor) -> Tensor:
        """b beside o (..., n, 2Q), see the class; or X itself if there is no box."""
        if not self.boxed:
            return X
        low, high = self.low.unsqueeze(-2), self.high.unsqueeze(-2)
        inside, width = X.clamp(low, high), high - low
        return torch.cat([inside, X.clamp(low - width, high + width) - inside], dim=-1)


class SumKernel(Kernel):
    """The sum of kernels, whose functions are sums of a function from each kernel.

    Parameters
    ----------
    kernels : sequence of Kernel
        Kernels with the same number of outputs.
    """

    kernels: Sequence[Kernel]  # a ModuleList

    def __init__(self, kernels: Sequence[Kernel]):
        super().__init__(kernels[0].n_outputs)
        self.add_module("kernels", nn.ModuleList(kernels))

    def hyperparameters(self) -> dict[str, Tensor]:
        """Those of all kernels. If several kernels have a number of the same name, the first kernel's is taken."""
        return {name: value for kernel in reversed(self.kernels) for name, value in kernel.hyperparameters().items()}

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`Kernel.covariance`."""
        return sum((kernel.covariance(X1, X2) for kernel in self.kernels[1:]), self.kernels[0].covariance(X1, X2))

    def diagonal(self, X: Tensor) -> Tensor:
        """See :meth:`Kernel.diagonal`."""
        return torch.stack([kernel.diagonal(X) for kernel in self.kernels]).sum(0)

    def draw(self, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
        """Sums of a function drawn from each kernel."""
        draws = [(kernel.deviation, kernel.draw(streams, n_inputs, n_outputs)) for kernel in self.kernels]
        return lambda x: torch.stack([deviation * function(x) for deviation, function in draws]).sum(0)

    def gradient_variance(self, n_inputs: int) -> Tensor | None:
        """The sum of the kernels' variances; None unless each kernel has them."""
        total = self.unit.new_zeros(self.n_outputs, n_inputs)
        for kernel in self.kernels:
            variance = kernel.gradient_variance(n_inputs)
            if variance is None:
                return None
            total = total + variance * kernel.variance[:, None]
        return total

    def log_prior(self) -> Tensor:
        """The sum of the kernels' log densities."""
        return torch.stack([kernel.log_prior() for kernel in self.kernels]).sum()


def make_kernel(
    kernel, n_inputs: int, n_outputs: int = 1, *, ard: bool = False, groups: Sequence[int] | None = None
) -> Kernel:
    """The kernel that ``kernel`` stands for.

    Parameters
    ----------
    kernel : str or callable
        Name of a profile, or a function that makes a kernel from the following arguments, such as a kernel's class.
    n_inputs, n_outputs : int
        Q and D.
    ard : bool, default=False
        Whether each input dimension has its own lengthscale.
    groups : sequence of int, default=None
        Groups of inputs that share a lengthscale, if ``ard`` is True and ``kernel`` is a name; see
        :class:`StationaryKernel`.

    Raises
    ------
    ValueError
        If ``kernel`` is a kernel already, or does not make one, or one whose covariances and variances are no such.
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
    if type(made).places is Kernel.places:  # others compare inputs with something else
        _check_made(made, n_inputs)
    return made


@torch.no_grad()
def _check_made(kernel: Kernel, n_inputs: int) -> None:
    """ValueError unless a kernel of the user's has covariances of the right shape, and their diagonal as variances.

    Another shape would end in an error that does not name the kernel, and other variances in wrong predictions.
    """
    X = torch.arange(3 * n_inputs, device=kernel.unit.device).to(kernel.unit).sin().reshape(3, n_inputs)
    name, D = type(kernel).__name__, kernel.n_outputs
    returned = {
        "covariance(X1, X2) of 2 and 3": (kernel.covariance(X[:2], X), (D, 2, 3)),
        "diagonal(X) of 3": (kernel.diagonal(X), (D, 3)),
    }
    for what, (values, shape) in returned.items():
        got = (tuple(values.shape), values.dtype) if isinstance(values, Tensor) else type(values).__name__
        if got != (shape, X.dtype):
            raise ValueError(
                f"{name}.{what} points must be a tensor of shape {shape} and {X.dtype}, as its {D} covariance "
                f"functions and the points are, got {got}: correct the kernel."
            )
    variance, diagonal = kernel.covariance(X, X).diagonal(dim1=-2, dim2=-1), kernel.diagonal(X)
    if not torch.allclose(variance, diagonal, rtol=SAME_VARIANCE, atol=0.0, equal_nan=True):
        raise ValueError(
            f"{name}.diagonal(X) must be the diagonal of covariance(X, X), here {variance.flatten().tolist()}, got "
            f"{diagonal.flatten().tolist()}: correct the kernel."
        )
