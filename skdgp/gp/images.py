"""The convolutional kernel: a function of an image is a weighted sum of one function of its patches.

    f(X) = Σ_p w_p g(X[p]),    g ~ GP(0, k)

(van der Wilk, Rasmussen and Hensman, NeurIPS 2017; SOLVE-GP, Sec. 4). X[p] are the pixels of the p-th of P patches,
which overlap. So k_f(X, X') = Σ_pp' w_p w_p' k(X[p], X'[p']). Inducing variables are values of g at patches Z. Their
covariances are k(Z, Z), and those with function values are Σ_p w_p k(Z, X[p]). Neither has a sum over pairs of patches.

In a sum with other kernels, f = f_1 + f_2, patches tell only about f_1. There are then further inducing variables,
which are values of f_2 at images (:class:`Summands`).
"""

import torch
from torch import Tensor, nn

from .composed import Part, draw_term
from .features import Features
from .kernels import Kernel
from .waves import Functions, Streams

#: Number of terms of a sum over pairs of patches that are computed at a time: 8 MiB.
PAIRS = 2**21

#: Largest number of patches that are clustered. The centres of the clusters are the initial inducing patches.
MOST_PLACES = 100_000


class Convolution(Part):
    """The convolutional kernel; see the module's docstring. Inputs of d numbers are patches, and all others are images.

    Parameters
    ----------
    kernel : Part
        k, of patches in the user's units.
    index : Tensor of shape (P, d)
        Positions of the pixels of each patch, in the row of numbers that is an image.
    scale, shift : Tensor of shape (Q,)
        Factor and summand that bring the pixels that a layer sees into the user's units.

    Attributes
    ----------
    change : Parameter of shape (D, P)
        Relative change of the weights, w = (1 + change)/P. So a step means the same for any number of patches.
    """

    stackable = True

    index: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, kernel: Part, index: Tensor, scale: Tensor, shift: Tensor):
        super().__init__(kernel.n_outputs)
        self.kernel = kernel
        self.change = nn.Parameter(torch.zeros(kernel.n_outputs, len(index), dtype=torch.float32, device="cpu"))
        for name, value in {"index": index, "scale": scale, "shift": shift}.items():
            self.register_buffer(name, value.clone())

    @property
    def weight(self) -> Tensor:
        """Weights w, (D, P)."""
        return (1.0 + self.change) / self.change.shape[-1]

    def hyperparameters(self) -> dict[str, Tensor]:
        """The weights, by name."""
        return {"weights": self.weight}

    def are_patches(self, X: Tensor) -> bool:
        """Whether inputs are patches."""
        return X.shape[-1] == self.index.shape[-1]

    def patches(self, X: Tensor) -> Tensor:
        """All patches (..., N, P, d) of images (..., N, Q)."""
        index = self.index.reshape(-1, *self.index.shape[-2:])[0]  # a stack has one for each member, all the same
        pixels = X * self.scale.unsqueeze(-2) + self.shift.unsqueeze(-2)
        return pixels[..., index]

    def places(self, X: Tensor) -> Tensor:
        """All patches (N·P, d) of images, or of the first images if there are too many."""
        return self.patches(X[: max(1, MOST_PLACES // self.index.shape[-2])]).flatten(0, 1)

    def numbers(self) -> int:
        """See :meth:`.Kernel.numbers`."""
        return self.index.shape[-2]

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Covariances between patches, between patches and images, or between images."""
        if self.are_patches(X1) and self.are_patches(X2):
            return self.kernel.covariance(X1, X2)
        if self.are_patches(X2):
            return self.covariance(X2, X1).mT
        if self.are_patches(X1):
            k = self.kernel.covariance(X1, self.patches(X2).flatten(-3, -2))  # (..., D, M, N·P)
            k = k.unflatten(-1, (X2.shape[-2], -1))
            return (k @ self.weight[..., None, :, None])[..., 0]
        n_rows = max(1, PAIRS // (self.index.shape[-2] ** 2 * X2.shape[-2]))
        return torch.cat([self._between(rows, X2) for rows in X1.split(n_rows, dim=-2)], dim=-2)

    def _between(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Covariances (..., D, n, N) of a few images with others."""
        k = self.covariance(self.patches(X1).flatten(-3, -2), X2)  # (..., D, n·P, N)
        return (self.weight[..., None, None, :] @ k.unflatten(-2, (X1.shape[-2], -1)))[..., 0, :]

    def diagonal(self, X: Tensor) -> Tensor:
        """Variances Σ_pp' w_p w_p' k(x_p, x_p') of images, (..., D, N), computed in chunks."""
        if self.are_patches(X):
            return self.kernel.diagonal(X)
        n_rows = max(1, PAIRS // self.index.shape[-2] ** 2)
        return torch.cat([self._variances(rows) for rows in X.split(n_rows, dim=-2)], dim=-1)

    def _variances(self, X: Tensor) -> Tensor:
        """Variances (..., D, N) of a few images."""
        patches = self.patches(X).movedim(-3, 0)  # (N, ..., P, d): rows before outputs
        k = self.kernel.covariance(patches, patches)  # (N, ..., D, P, P)
        w = self.weight[..., None, :]
        return (w @ k @ w.mT)[..., 0, 0].movedim(0, -1)

    def draw(self, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
        """Weighted sums of drawn functions of patches; see :meth:`.Kernel.draw`."""
        draws = [draw_term(term, streams, self.index.shape[-1], n_outputs) for term in self.kernel.terms()]

        def function(x: Tensor) -> Tensor:
            inputs = x if self.are_patches(x) else self.patches(x).flatten(-3, -2)
            values = torch.stack([draw(inputs) for draw in draws]).sum(0)  # (S, N·P, D)
            if self.are_patches(x):
                return values
            values = values.mT.unflatten(-1, (x.shape[-2], -1))  # (S, D, N, P)
            return (values @ self.weight[:, :, None])[..., 0].mT

        return function


class Added:
    """The sum of two drawn functions, which keeps both."""

    def __init__(self, first: Functions, second: Functions):
        self.parts = (first, second)

    def __call__(self, x: Tensor) -> Tensor:
        """Values of the sum, (S, N, D)."""
        return self.parts[0](x) + self.parts[1](x)


class ConvolutionalSum(Kernel):
    """The sum of a convolutional kernel and a kernel of whole images.

    Parameters
    ----------
    convolution : Convolution
    whole : Part
    """

    stackable = True

    def __init__(self, convolution: Convolution, whole: Part):
        super().__init__(convolution.n_outputs)
        self.convolution, self.whole = convolution, whole

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Covariances between images, (..., D, N1, N2)."""
        return self.convolution.covariance(X1, X2) + self.whole.covariance(X1, X2)

    def diagonal(self, X: Tensor) -> Tensor:
        """Variances of images, (..., D, N)."""
        return self.convolution.diagonal(X) + self.whole.diagonal(X)

    def places(self, X: Tensor) -> Tensor:
        """Patches of images; see :meth:`Convolution.places`."""
        return self.convolution.places(X)

    def numbers(self) -> int:
        """See :meth:`.Kernel.numbers`."""
        return self.convolution.numbers()

    def draw(self, streams: Streams, n_inputs: int, n_outputs: int) -> Added:
        """The sum of a function drawn from each kernel."""
        first = self.convolution.draw(streams, n_inputs, n_outputs)
        return Added(first, self.whole.draw(streams, n_inputs, n_outputs))


class Summands(Features):
    """Values of the convolution's function at patches, and of the other function at images.

    Parameters
    ----------
    patches : Tensor of shape (M, d)
    images : Tensor of shape (M', Q)
    """

    def __init__(self, patches: Tensor, images: Tensor):
        super().__init__(images.shape[-1])
        self.patches, self.images = nn.Parameter(patches.clone()), nn.Parameter(images.clone())

    def __len__(self) -> int:
        return len(self.patches) + len(self.images)

    def covariance(self, kernel: Kernel, dtype: torch.dtype) -> Tensor:
        """Prior covariances: two diagonal blocks, since the two functions are independent."""
        first, second = _summands(kernel)
        patches, images = self.patches.to(dtype), self.images.to(dtype)
        blocks = zip(first.covariance(patches, patches), second.covariance(images, images), strict=True)
        return torch.stack([torch.block_diag(*pair) for pair in blocks])

    def cross(self, kernel: Kernel, x: Tensor) -> Tensor:
        """Covariances with f of the values of the one function, and of those of the other."""
        first, second = _summands(kernel)
        return torch.cat([first.covariance(self.patches, x), second.covariance(self.images, x)], dim=-2)

    def values(self, kernel: Kernel, prior: Functions, streams: Streams) -> Tensor:
        """Values of the two functions that were drawn."""
        assert isinstance(prior, Added)
        first, second = prior.parts
        return torch.cat([first(self.patches[None]).mT, second(self.images[None]).mT], dim=-1)


def _summands(kernel: Kernel) -> tuple[Convolution, Part]:
    assert isinstance(kernel, ConvolutionalSum)
    return kernel.convolution, kernel.whole
