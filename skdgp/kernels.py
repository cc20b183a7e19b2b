"""Kernels that scikit-learn does not have. They can be composed with its own kernels.

All regressors and classifiers also take kernel objects of scikit-learn itself, such as
``1.0 * RBF([1.0, 1.0]) + ExpSineSquared(periodicity=7.0)``.
"""

from numbers import Integral
from typing import ClassVar

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Hyperparameter, Kernel

__all__ = ["Convolutional", "Select"]


class _OfAnother(Kernel):
    """A kernel that is made of another one, and has the hyperparameters of that."""

    _other: ClassVar[str]  # name of the parameter that has the other kernel

    def _resolved(self):
        """The other kernel."""
        return getattr(self, self._other)

    def get_params(self, deep=True):
        """Parameters of the kernel and, with ``deep``, those of the other kernel after its name and ``__``."""
        params = super().get_params()
        other = params[self._other]
        if deep and other is not None:
            params |= {f"{self._other}__{name}": value for name, value in other.get_params().items()}
        return params

    @property
    def hyperparameters(self):
        """Hyperparameters of the other kernel, after its name and ``__``."""
        return [
            Hyperparameter(f"{self._other}__{given.name}", given.value_type, given.bounds, given.n_elements)
            for given in self._resolved().hyperparameters
        ]

    @property
    def theta(self):
        """Logarithms of the hyperparameters that are not fixed."""
        return self._resolved().theta

    @theta.setter
    def theta(self, theta):
        other = self._resolved()
        other.theta = theta
        setattr(self, self._other, other)  # which may have been None

    @property
    def bounds(self):
        """Bounds of these logarithms."""
        return self._resolved().bounds


class Convolutional(_OfAnother):
    """A kernel for images: a function of an image is a weighted sum of one function of all its patches.

    A patch is a small rectangle of the image. Such functions look for the same things everywhere in an image, so that
    an image that has moved by one pixel hardly looks new (van der Wilk, Rasmussen and Hensman, "Convolutional Gaussian
    Processes", NeurIPS 2017). Inducing points are patches. The weights of the patches start equal and are learnt. You
    may add this kernel to kernels of whole images. Products of kernels go into ``base``.

    Parameters
    ----------
    image_shape : tuple of int
        Shape of the image that each row of ``X`` holds: height and width, or height, width and channels. Channels come
        last in a row, too.
    patch_shape : tuple of int
        Height and width of a patch. Each patch has all channels.
    base : Kernel, default=None
        Kernel of patches. Its lengthscales are in the units of pixels. None is ``ConstantKernel() * RBF()`` with the
        lengthscale √(number of pixels in a patch), which suits pixels between 0 and 1.

    Attributes
    ----------
    weights_ : ndarray of shape (n_patches,)
        Learnt weights of the patches, row by row, times the number of patches. Only the ``kernel_`` of a fitted
        estimator has them.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skdgp.kernels import Convolutional
    >>> kernel = Convolutional((8, 8), (3, 3), 1.0 * RBF(10.0))
    >>> kernel(np.zeros((2, 64))).shape
    (2, 2)
    """

    _other = "base"

    def __init__(self, image_shape, patch_shape, base=None):
        self.image_shape = image_shape
        self.patch_shape = patch_shape
        self.base = base

    def resolved_base(self):
        """The base, or the kernel that None stands for."""
        if self.base is not None:
            return self.base
        channels = self.image_shape[2] if len(self.image_shape) > 2 else 1
        return ConstantKernel(1.0) * RBF(float(np.sqrt(self.patch_shape[0] * self.patch_shape[1] * channels)))

    _resolved = resolved_base

    def index(self):
        """Numbers (n_patches, n_pixels) of the pixels of each patch."""
        height, width = self.image_shape[:2]
        pixels = np.arange(int(np.prod(self.image_shape))).reshape(height, width, -1)
        windows = np.lib.stride_tricks.sliding_window_view(pixels, tuple(self.patch_shape), axis=(0, 1))
        return np.moveaxis(windows, 2, -1).reshape(-1, self.patch_shape[0] * self.patch_shape[1] * pixels.shape[2])

    def __call__(self, X, Y=None, eval_gradient=False):
        """Covariances of rows, as in scikit-learn. Weights are the learnt ones, or else all the same."""
        if eval_gradient:
            raise ValueError("Convolutional has no gradient here: fit it with the estimators of this package.")
        first, w = np.atleast_2d(X), self._weights()
        second, base = first if Y is None else np.atleast_2d(Y), self.resolved_base()
        patches = [rows[:, self.index()] for rows in (first, second)]  # (n, P, d)
        k = base(*(patch.reshape(-1, patch.shape[-1]) for patch in patches))
        return np.einsum("p,ipjq,q->ij", w, k.reshape(len(first), len(w), len(second), len(w)), w)

    def diag(self, X):
        """Variances of rows."""
        return np.array([self(row[None])[0, 0] for row in np.atleast_2d(X)])

    def is_stationary(self):
        """False: the covariance depends on more than the difference of two rows."""
        return False

    def __repr__(self):
        return f"Convolutional({self.image_shape!r}, {self.patch_shape!r}, {self.base!r})"

    def _weights(self):
        n_patches = len(self.index())
        return getattr(self, "weights_", np.ones(n_patches)) / n_patches


class Select(_OfAnother):
    """A kernel that sees only some of the features. A sum of such kernels makes an additive model.

    You can compose it with scikit-learn's kernels, and ``GaussianProcessRegressor`` takes it, too.

    Parameters
    ----------
    kernel : Kernel
        Kernel of the chosen features.
    columns : int, str, or sequence of them
        The chosen features, by their numbers, or by their names in the data frame of ``fit``. Only the estimators of
        this package take names. A mask has a truth value for each feature.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skdgp.kernels import Select
    >>> kernel = Select(RBF(1.0), 0) + Select(RBF(2.0), [1, 2])
    >>> kernel(np.zeros((2, 3))).shape
    (2, 2)
    >>> kernel
    Select(RBF(length_scale=1), 0) + Select(RBF(length_scale=2), [1, 2])
    """

    _other = "kernel"

    def __init__(self, kernel, columns):
        self.kernel = kernel
        self.columns = columns

    def __eq__(self, other):
        same = type(self) is type(other) and self.kernel == other.kernel
        return same and np.array_equal(self.columns, other.columns)

    def __call__(self, X, Y=None, eval_gradient=False):
        """Covariances of rows, and their gradients, as in scikit-learn."""
        chosen = None if Y is None else self._of(Y)
        return self.kernel(self._of(X), chosen, eval_gradient=eval_gradient)

    def diag(self, X):
        """Variances of rows."""
        return self.kernel.diag(self._of(X))

    def is_stationary(self):
        """Whether ``kernel`` is stationary."""
        return self.kernel.is_stationary()

    def __repr__(self):
        return f"Select({self.kernel!r}, {self.columns!r})"

    def chosen(self, n_features):
        """The chosen features as a list of numbers or names; ValueError if ``columns`` is none of what it may be."""
        columns = list(np.atleast_1d(np.asarray(self.columns, dtype=object)))
        if len(columns) == n_features and all(isinstance(choice, bool | np.bool_) for choice in columns):
            columns = np.flatnonzero(columns).tolist()
        if not columns or any(isinstance(choice, bool) or not isinstance(choice, Integral | str) for choice in columns):
            raise ValueError(
                f"kernel has Select of columns={self.columns!r}: give a number or a name, a list of them, or a mask of "
                f"the {n_features} features that chooses one at least."
            )
        return columns

    def _of(self, X):
        X = np.atleast_2d(X)
        columns = self.chosen(X.shape[1])
        if any(isinstance(choice, str) for choice in columns):
            raise ValueError(f"columns={self.columns!r} are names, and an array has numbers: give these.")
        return X[:, columns]
