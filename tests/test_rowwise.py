"""The algebra of many small problems against the algebra of one."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers import every_covariance, normal, shared_or_own_kernels

from skdgp.gp import conditionals, rowwise
from skdgp.gp.linalg import inverse_cholesky

ELIMINATED, FACTORISED = 5, rowwise.MAX_ELIMINATION + 1
N_POINTS, N_OUTPUTS, N_ROWS = 3, 2, 4

every_method = pytest.mark.parametrize("n_inducing", [1, ELIMINATED, FACTORISED])
every_whitened = pytest.mark.parametrize("whitened", [False, True], ids=["plain", "whitened"])
every_kernel = shared_or_own_kernels(N_OUTPUTS)


def rows_first(x):
    """(..., D, B) -> (B, D, ...), as :mod:`skdgp.gp.conditionals` has it."""
    return x.movedim((-1, -2), (0, 1))


def correlations(n_inducing):
    """K (M, M, D, B) and k (M, S, D, B) that one Gaussian could have."""
    R = normal(n_inducing + N_POINTS, 2 * n_inducing + 4, N_OUTPUTS, N_ROWS, seed=n_inducing)
    R = R / R.square().sum(1, keepdim=True).sqrt()
    K = torch.einsum("imdb,jmdb->ijdb", R, R)
    return K[:n_inducing, :n_inducing].contiguous(), K[:n_inducing, n_inducing:].contiguous()


def pack(K, k):
    """Correlations as :func:`rowwise.whiten` takes them."""
    joint = torch.cat([K, k], dim=1)
    return joint.flatten(0, 1)[rowwise.packing(*k.shape[:2], K.device).square]


def whiten(K, k, **options):
    return rowwise.whiten_rows(pack(K, k), len(K), **options)


def make_posterior(n_inducing, covariance):
    mean = normal(n_inducing, N_OUTPUTS, N_ROWS, seed=1)
    scale = 0.3 + normal(n_inducing, N_OUTPUTS, N_ROWS, seed=2).abs()
    if covariance == "diag":
        return mean, scale
    below = torch.ones(n_inducing, n_inducing).tril(-1)[..., None, None] * 0.3
    root = below * normal(n_inducing, n_inducing, N_OUTPUTS, N_ROWS, seed=3)
    index = torch.arange(n_inducing)
    return mean, root.index_put((index, index), scale)


@every_method
def test_whiten_equals_the_batched_factor(n_inducing):
    K, k = correlations(n_inducing)
    W, A = whiten(K, k)
    expected = inverse_cholesky(rows_first(K))
    torch.testing.assert_close(rows_first(W), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rows_first(A), expected @ rows_first(k), rtol=1e-10, atol=1e-12)


def test_packing_keeps_every_number_once():
    square, mirrored, tableau = rowwise.packing(3, 2, torch.device("cpu"))
    joint = torch.arange(15).reshape(3, 5)
    assert joint.flatten()[square].tolist() == [5, 10, 11, 3, 4, 8, 9, 13, 14]
    assert joint.flatten()[mirrored].tolist() == [1, 2, 7]
    above_diagonal = torch.zeros(24, dtype=torch.long).index_copy(0, tableau, square).reshape(3, 8)
    expected = [[0, 5, 10, 3, 4, 0, 0, 0], [0, 0, 11, 8, 9, 0, 0, 0], [0, 0, 0, 13, 14, 0, 0, 0]]
    assert above_diagonal.tolist() == expected


def make_problem(n_inducing, covariance, n_kernels):
    """Arguments of :func:`rowwise.conditional`."""
    K, k = (part[..., :n_kernels, :] for part in correlations(n_inducing))
    deviation = torch.tensor([[0.7], [1.6]], dtype=torch.float64)[:n_kernels]
    return pack(K, k), *make_posterior(n_inducing, covariance), deviation


@every_method
@every_whitened
@every_covariance
@every_kernel
def test_conditional_equals_that_of_one_problem(n_inducing, whitened, covariance, n_kernels):
    packed, mean, scale, deviation = make_problem(n_inducing, covariance, n_kernels)
    k = correlations(n_inducing)[1][..., :n_kernels, :]
    W, _ = rowwise.whiten_rows(packed, n_inducing)
    f_mean, f_variance, kl = rowwise.conditional(packed, mean, scale, deviation, whiten=whitened)
    expected = conditionals.conditional(*map(rows_first, (W, k, mean, scale)), whiten=whitened)
    torch.testing.assert_close(rows_first(f_mean), expected[0] * deviation, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rows_first(f_variance), expected[1] * deviation.square(), rtol=1e-10, atol=1e-12)
    expected_kl = conditionals.kl_divergence(rows_first(mean), rows_first(scale), None if whitened else rows_first(W))
    torch.testing.assert_close(rows_first(kl), expected_kl, rtol=1e-10, atol=1e-12)


@every_whitened
@every_covariance
def test_rounding_cannot_make_a_variance_negative(whitened, covariance):
    K, _ = correlations(ELIMINATED)
    mean, scale = make_posterior(ELIMINATED, covariance)
    problem = pack(K, K), mean, 1e-8 * scale, torch.ones(2, 1).double()
    _, variance, _ = rowwise.conditional(*problem, whiten=whitened, jitter=1e-14)
    torch.testing.assert_close(variance, torch.full_like(variance, conditionals.VARIANCE_FLOOR), rtol=1e-12, atol=0)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=["W", "A", "both"])
@pytest.mark.parametrize(("n_inducing", "fast_mode"), [(1, False), (4, False), (FACTORISED, True)])
def test_gradient_of_whiten(n_inducing, fast_mode, used):
    R = normal(n_inducing, n_inducing + 2, 2, 2, seed=1).requires_grad_()
    k = normal(n_inducing, 2, 2, 2, seed=2).requires_grad_()

    def call(R, k):
        unit = R / R.square().sum(1, keepdim=True).sqrt()
        outputs = whiten(torch.einsum("imdb,jmdb->ijdb", unit, unit), k)
        return tuple(outputs[i] for i in used) if 1 in used else outputs[0] * k.sum().cos()

    assert torch.autograd.gradcheck(call, (R, k), fast_mode=fast_mode)


@every_method
@every_whitened
@every_covariance
@every_kernel
def test_gradients_of_conditional(n_inducing, whitened, covariance, n_kernels):
    inputs = [part.detach().requires_grad_() for part in make_problem(n_inducing, covariance, n_kernels)]
    call = partial(rowwise.conditional, whiten=whitened)
    assert torch.autograd.gradcheck(call, inputs, fast_mode=n_inducing > ELIMINATED)


@every_whitened
@every_kernel
def test_gradients_written_out_equal_those_of_the_formulas(whitened, n_kernels):
    problem = make_problem(ELIMINATED, "diag", n_kernels)

    def formulas(packed, *others):
        return rowwise.posterior(*rowwise.whiten_rows(packed, ELIMINATED), *others, whiten=whitened)

    found = []
    for function in (partial(rowwise.conditional, whiten=whitened), formulas):
        inputs = [part.detach().requires_grad_() for part in problem]
        outputs = function(*inputs)
        bars = [normal(*each.shape, seed=i) for i, each in enumerate(outputs)]
        found.append((*outputs, *torch.autograd.grad(outputs, inputs, bars)))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


def spoil(K, rho):
    """The same matrices, but for one with correlations ``rho`` above one."""
    K = K.clone()
    K[..., 1, 2] = torch.full(K.shape[:2], rho, dtype=K.dtype).fill_diagonal_(1.0)
    return K


@pytest.mark.parametrize("n_inducing", [ELIMINATED, FACTORISED])
def test_a_matrix_that_fails_gets_more_jitter(n_inducing):
    K, k = correlations(n_inducing)
    spoilt = spoil(K, 1 + 3e-4).requires_grad_()
    W, A = whiten(spoilt, k)
    torch.testing.assert_close(rows_first(W), inverse_cholesky(rows_first(spoilt)), rtol=1e-10, atol=1e-12)
    (W.sum() + A.sum()).backward()
    assert all(part.isfinite().all() for part in (W, A, spoilt.grad))
    others = torch.ones(N_OUTPUTS, N_ROWS, dtype=torch.bool)
    others[1, 2] = False
    alone, _ = whiten(K, k)
    torch.testing.assert_close(W[..., others], alone[..., others], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_inducing", [ELIMINATED, FACTORISED])
@pytest.mark.parametrize(("rho", "message"), [(2.0, "not positive definite"), (float("nan"), "NaN or infinity")])
def test_error_where_jitter_does_not_help(n_inducing, rho, message):
    K, k = correlations(n_inducing)
    with pytest.raises(np.linalg.LinAlgError, match=message):
        whiten(spoil(K, rho), k)
