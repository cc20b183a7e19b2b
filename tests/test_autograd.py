"""Functions with gradients of their own, called in torch's ways."""

import pytest
import torch
from helpers import normal
from torch.func import grad, vmap

from skdgp.gp.correlations import correlation
from skdgp.gp.kernels import PROFILES, StationaryKernel
from skdgp.gp.rowwise import _DiagonalPosterior, packed_correlation
from skdgp.gp.special import log_ndtr


def diagonal_posterior(A, mean, root, deviation):
    return sum(part.sum() for part in _DiagonalPosterior.apply(A, mean, root, deviation)[:3])


KERNEL = StationaryKernel("rbf", 3, 2).double()


def packed(Z, x):
    return packed_correlation(KERNEL, Z, x).square().sum()


FUNCTIONS = {
    "log_ndtr": (lambda x: log_ndtr(x).sum(), [normal(3, 7)]),
    "correlation": (
        lambda X1, X2: correlation(X1, X2, PROFILES["matern52"]).square().sum(),
        [normal(3, 4, 2, seed=1), normal(3, 5, 2, seed=2)],
    ),
    "packed": (packed, [normal(3, 6, 4, 3, seed=1), normal(3, 6, 2, 3, seed=2)]),
    "posterior": (
        diagonal_posterior,
        [
            normal(3, 4, 6, 2, 5, seed=1),
            normal(3, 4, 2, 5, seed=2),
            *(normal(3, *s, seed=3).abs() for s in ((4, 2, 5), (2, 1))),
        ],
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_is_a_loop(name):
    function, inputs = FUNCTIONS[name]
    gradient = grad(function, argnums=tuple(range(len(inputs))))
    torch.testing.assert_close(
        vmap(function)(*inputs), torch.stack([function(*each) for each in zip(*inputs, strict=True)])
    )
    expected = zip(*(gradient(*each) for each in zip(*inputs, strict=True)), strict=True)
    for found, one_by_one in zip(vmap(gradient)(*inputs), expected, strict=True):
        torch.testing.assert_close(found, torch.stack(one_by_one))
