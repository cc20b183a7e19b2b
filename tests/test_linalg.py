"""Cholesky factors against dense NumPy, and what happens to matrices that have none."""

import numpy as np
import pytest
import torch
from helpers import normal

from skdgp.gp import linalg
from skdgp.gp.linalg import JITTER, cholesky, inverse_cholesky, solve, whiten_sets


def gram(R):
    return R @ R.mT


def with_correlation(rho, n=4):
    """Unit diagonal, ``rho`` elsewhere: the smallest eigenvalue is 1 − rho."""
    return torch.full((n, n), rho, dtype=torch.float64).fill_diagonal_(1.0)


def with_jitter(K, jitter):
    """What a factor's square must be."""
    return K + jitter * K.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * torch.eye(K.shape[-1])


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 3, 4, 4)])
@pytest.mark.parametrize("jitter", [1e-3, JITTER, 0.0])
def test_factor_and_inverse_equal_dense_numpy(shape, jitter):
    K = gram(normal(*shape))
    L = np.linalg.cholesky(with_jitter(K, jitter).numpy())
    np.testing.assert_allclose(cholesky(K, jitter), L, rtol=1e-10, atol=1e-12)
    W = inverse_cholesky(K, jitter)
    np.testing.assert_allclose(W, np.linalg.inv(L), rtol=1e-8, atol=1e-10)
    assert torch.equal(W, W.tril())


@pytest.mark.parametrize("size", [17, 33, 64])
def test_many_matrices_are_factorised_by_blocks(size, monkeypatch):
    K = gram(normal(3, 6, size, size))
    W = inverse_cholesky(K)
    np.testing.assert_allclose(W, np.linalg.inv(np.linalg.cholesky(with_jitter(K, JITTER).numpy())), atol=1e-7)
    assert torch.equal(W, W.tril())
    monkeypatch.setattr(linalg, "MANY", 1000)
    torch.testing.assert_close(W, inverse_cholesky(K), rtol=1e-7, atol=1e-9)


def test_some_of_many_matrices_get_more_jitter():
    K = torch.stack([*gram(normal(20, 40, 40)), with_correlation(1 + 3e-4, 40)])
    W = inverse_cholesky(K)
    torch.testing.assert_close(W[:20], inverse_cholesky(K[:20]), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(W[20], inverse_cholesky(K[20]))


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_jitter_is_relative_to_the_diagonal(scale):
    K = gram(normal(5, 1))  # of rank one: only jitter makes it definite
    torch.testing.assert_close(cholesky(scale * K), scale**0.5 * cholesky(K), rtol=1e-7, atol=0)
    torch.testing.assert_close(inverse_cholesky(scale * K), scale**-0.5 * inverse_cholesky(K), rtol=1e-7, atol=0)


def test_only_the_matrices_that_fail_get_more_jitter():
    sound, failing = gram(normal(4, 4)), with_correlation(1 + 3e-4)  # smallest eigenvalue −3e-4
    L = cholesky(torch.stack([sound, failing, sound]))
    assert torch.equal(L[0], cholesky(sound))
    assert torch.equal(L[2], cholesky(sound))
    torch.testing.assert_close(gram(L[1]), with_jitter(failing, 1e-3), rtol=1e-12, atol=0)


def test_jitter_grows_from_zero_too():
    K = with_correlation(1.0)
    torch.testing.assert_close(gram(cholesky(K, jitter=0.0)), K, rtol=1e-12, atol=0)


@pytest.mark.parametrize("factorise", [cholesky, inverse_cholesky])
def test_error_where_a_matrix_is_not_finite(factorise):
    K = torch.stack([with_correlation(0.5), with_correlation(float("nan"))])
    with pytest.raises(np.linalg.LinAlgError, match=r"contains NaN or infinity.*lower learning_rate"):
        factorise(K)


@pytest.mark.parametrize("factorise", [cholesky, inverse_cholesky])
def test_error_where_a_matrix_is_hopelessly_indefinite(factorise):
    K = torch.stack([with_correlation(0.5), with_correlation(2.0)])
    with pytest.raises(
        np.linalg.LinAlgError, match=r"A 4 x 4 covariance matrix is not positive definite, even with 1e"
    ):
        factorise(K)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 3)])
def test_gradient_of_the_inverse_factor(shape):
    R = normal(*shape, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda R: inverse_cholesky(gram(R), 0.0), R)


SETS = [(5,), (2, 3), (2, 1, 2)]


@pytest.mark.parametrize("sizes", SETS)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_whitening_of_sets_equals_whitening_by_the_whole_factor(sizes, batch):
    K, k = gram(normal(*batch, 5, 6)), normal(*batch, 5, 3, seed=1)
    L = cholesky(K)
    parts = whiten_sets(K, k, sizes=sizes)
    torch.testing.assert_close(torch.cat([A for _, A in parts], -2), torch.linalg.solve(L, k))
    start = 0
    for (W, A), size in zip(parts, sizes, strict=True):
        block = L[..., start : start + size, start : start + size]
        torch.testing.assert_close(W, torch.linalg.inv(block))
        assert A.shape == (*batch, size, 3)
        start += size


@pytest.mark.parametrize("sizes", SETS)
@pytest.mark.parametrize("used", ["both", "W", "A", "last"])
def test_gradient_of_whitening(sizes, used):
    def outputs(R, k):
        W, A = zip(*whiten_sets(gram(R), k, 0.0, sizes), strict=True)
        return {"both": (*W, *A), "W": W, "A": A, "last": (A[-1],)}[used]

    R, k = normal(2, 5, 5, seed=2).requires_grad_(), normal(2, 5, 3, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(outputs, (R, k))


def test_whitening_keeps_the_precision_of_both():
    K, k = gram(normal(4, 4)), normal(4, 2).float().requires_grad_()
    K.requires_grad_()
    [(_, A1), (_, A2)] = whiten_sets(K, k, sizes=(2, 2))
    assert A1.dtype == A2.dtype == torch.float32
    (A1.sum() + A2.sum()).backward()
    assert (K.grad.dtype, k.grad.dtype) == (torch.float64, torch.float32)


@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("outer", [(), (2,)])
def test_solutions_of_positive_definite_systems_and_their_gradient(batch, outer):
    """Matrices may be shared, as right-hand sides of several outputs share them."""
    R, b = normal(*batch, 4, 4, seed=4).requires_grad_(), normal(*outer, *batch, 4, 1, seed=5).requires_grad_()

    def solution(R, b):
        K = gram(R) + torch.eye(4)
        return solve(K.expand(*outer, *K.shape), b)

    torch.testing.assert_close(solution(R, b), torch.linalg.solve(gram(R) + torch.eye(4), b))
    assert torch.autograd.gradcheck(solution, (R, b))
    assert torch.autograd.gradcheck(lambda R: solution(R, b.detach()), R)
