"""Special functions against SciPy, far beyond where naive formulas underflow."""

import math

import numpy as np
import pytest
import torch
from scipy import special

from skdgp.gp.special import MOST_NODES, gauss_hermite, graded, log_ndtr, mean_softplus

#: Dense where the branches meet, and far out on both sides.
POINTS = np.concatenate([np.linspace(-12.0, 12.0, 481), np.linspace(-1e3, 1e3, 401), [-1e-20, 1e-20]])

#: Relative errors left and right of zero, and what is too small to be told from nothing. To the right
#: everything is proportional to exp(−x²/2), which is wrong by x²/2 ulps.
TOLERANCE = {torch.float64: (2e-15, 1e-12, 1e-300), torch.float32: (1e-6, 1e-5, 1e-37)}

every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def value_and_gradient(x):
    x = x.clone().requires_grad_()
    value = log_ndtr(x)
    value.sum().backward()
    return value.detach(), x.grad


def mills_ratio(x):
    """φ(x)/Φ(x) in float64."""
    with np.errstate(over="ignore"):
        return math.sqrt(2 / math.pi) / special.erfcx(-x / math.sqrt(2))


class TestLogNdtr:
    @every_dtype
    def test_value_and_gradient(self, dtype):
        x = torch.tensor(POINTS, dtype=dtype)
        value, gradient = value_and_gradient(x)
        assert value.dtype == gradient.dtype == dtype
        exact = x.double().numpy()  # rounded to float32 where dtype is
        left, right, nothing = TOLERANCE[dtype]
        for side, rtol in ((exact < 0, left), (exact >= 0, right)):
            np.testing.assert_allclose(value[side], special.log_ndtr(exact[side]), rtol=rtol, atol=nothing)
            np.testing.assert_allclose(gradient[side], mills_ratio(exact[side]), rtol=rtol, atol=nothing)

    @every_dtype
    def test_far_out(self, dtype):
        """log Φ(−x) ≈ −x²/2 − log x − log √2π, of slope x; on the other side nothing is left of either."""
        value, gradient = value_and_gradient(torch.tensor([-1e3, 1e3, -1e15, 1e15], dtype=dtype))
        expected = [-0.5e6 - math.log(1e3) - 0.5 * math.log(2 * math.pi), 0.0, -0.5e30, 0.0]
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        np.testing.assert_allclose(gradient, [1e3, 0.0, 1e15, 0.0], rtol=2e-6)

    def test_gradcheck(self):
        x = torch.tensor([[-30.0, -5.0, -1.0, -1e-3], [1e-3, 0.5, 2.0, 6.0]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(log_ndtr, x)
        assert torch.autograd.gradcheck(lambda x: log_ndtr(x).square(), x)

    def test_has_no_second_derivative(self):
        x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        [slope] = torch.autograd.grad(log_ndtr(x), x, create_graph=True)
        with pytest.raises(RuntimeError, match="does not require grad"):
            slope.backward()

    def test_both_sides_meet_at_zero(self):
        value, gradient = value_and_gradient(torch.tensor([-0.0, 0.0], dtype=torch.float64))
        np.testing.assert_allclose(value, math.log(0.5), rtol=1e-15)
        np.testing.assert_allclose(gradient, math.sqrt(2 / math.pi), rtol=1e-15)


class TestGaussHermite:
    @pytest.mark.parametrize("n_nodes", [1, 2, 5, 20])
    def test_polynomials_are_exact(self, n_nodes):
        """E x^k = (k − 1)!! for even k, for every degree below twice the number of nodes."""
        nodes, weights = gauss_hermite(n_nodes, torch.empty(0, dtype=torch.float64))
        assert nodes.shape == weights.shape == (n_nodes,)
        for degree in range(2 * n_nodes):
            expected = 0.0 if degree % 2 else math.prod(range(1, degree, 2))
            scale = float((nodes.abs() ** degree) @ weights)
            assert float((nodes**degree) @ weights) == pytest.approx(expected, abs=1e-12 * scale), degree

    def test_entire_functions_are_as_good_as_exact(self):
        nodes, weights = gauss_hermite(20, torch.empty(0, dtype=torch.float64))
        assert float(nodes.exp() @ weights) == pytest.approx(math.exp(0.5), rel=1e-13)
        assert float(nodes.cos() @ weights) == pytest.approx(math.exp(-0.5), rel=1e-13)

    @every_dtype
    def test_a_distribution_of_the_right_type(self, dtype):
        nodes, weights = gauss_hermite(20, torch.empty(0, dtype=dtype))
        assert nodes.dtype == weights.dtype == dtype
        assert float(weights.sum()) == pytest.approx(1.0, rel=1e-15 if dtype == torch.float64 else 1e-6)
        assert (weights > 0).all()


class TestGraded:
    @pytest.mark.parametrize("centre", [0.0, 3.0])
    @pytest.mark.parametrize("width", [1.0, 1e3, 1e8])
    def test_a_step_and_a_bump_of_any_width(self, width, centre):
        """∫ N(d | 0, width²) Φ(d − centre) dd = Φ(−centre/√(1 + width²)), one factor begins, the other ends."""
        low, high = (torch.tensor([limit], dtype=torch.float64) for limit in (-6.0, 6.0 * width))
        d, weights = graded(low, high)
        density = torch.exp(-0.5 * (d / width) ** 2) / (width * math.sqrt(2 * math.pi))
        value = (weights * density * torch.special.ndtr(d - centre)).sum()
        assert value.item() == pytest.approx(special.ndtr(-centre / math.hypot(1.0, width)), abs=1e-6)

    def test_rows_have_the_nodes_that_they_have_alone(self):
        low, high = torch.tensor([-3.0, 0.0, 2.0]), torch.tensor([1.0, 1e3, 2.0])
        d, weights = graded(low, high)
        assert (d >= low[:, None]).all() and (d <= high[:, None] * (1 + 1e-6)).all()
        torch.testing.assert_close(weights.sum(-1), high - low, rtol=1e-2, atol=1e-6)
        for i in range(3):
            alone, weights_alone = graded(low[i : i + 1], high[i : i + 1])
            n = alone.shape[-1]
            torch.testing.assert_close(d[i, :n], alone[0])
            torch.testing.assert_close(weights[i, :n], weights_alone[0])
            assert (weights[i, n:] == 0).all()

    @pytest.mark.parametrize("high", [math.inf, math.nan])
    def test_no_more_nodes_than_there_may_be(self, high):
        assert graded(torch.tensor([-1.0]), torch.tensor([high]))[0].shape == (1, MOST_NODES)
        assert graded(torch.tensor([-1.0]), torch.tensor([-1.0]))[0].shape == (1, 1)


def test_cached_nodes_serve_gradients_even_if_inference_mode_asked_for_them_first():
    like, x = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64, requires_grad=True)
    with torch.inference_mode():
        nodes, weights = gauss_hermite(29, like)
    (weights * (x * nodes).square()).sum().backward()
    assert x.grad.item() == pytest.approx(2.0)


class TestMeanSoftplus:
    @pytest.mark.parametrize("variance", [1e-14, 1e-3, 1.0, 25.0, 1e4])
    def test_value(self, variance):
        z = np.linspace(-10, 10, 100_001)
        share = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
        mean = np.array([-12.0, -1.0, 0.0, 0.3, 40.0])
        expected = np.logaddexp(0, mean[:, None] + np.sqrt(variance) * z) @ share
        found = mean_softplus(torch.as_tensor(mean), torch.tensor(variance).double())
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)

    def test_gradients(self):
        mean = torch.tensor([-5.0, 0.0, 2.0]).double().requires_grad_()
        variance = torch.tensor([[0.1], [30.0]]).double().requires_grad_()
        assert torch.autograd.gradcheck(mean_softplus, (mean, variance))
