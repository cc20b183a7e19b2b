"""AVDGP with the paper's configuration as one writes it first: LAPACK in batches, autograd for every gradient.

Nothing is wasted knowingly, and nothing is written out by hand. It is what the package's own step is measured by.
"""

import math

import torch
from torch import nn
from torch.nn.functional import softplus

JITTER, SCALE_FLOOR, VARIANCE_FLOOR = 1e-6, 1e-4, 1e-8


class Layer(nn.Module):
    """D outputs with M inducing variables u for each row, of which networks say N(mean, diag(scale²))."""

    def __init__(self, n_inputs, n_outputs, n_inducing):
        super().__init__()
        self.shape = (n_inducing, n_outputs)
        width = min(n_inputs, n_inducing * n_outputs)
        sizes = [(n_inputs, width), (width, width), (width, n_inducing * n_outputs)]
        self.points = nn.Linear(n_inputs, n_inducing * n_inputs)
        self.mean, self.scale = (self._network(sizes) for _ in range(2))
        self.log_lengthscale = nn.Parameter(torch.full((n_outputs,), 0.5 * math.log(n_inputs)))
        self.log_variance = nn.Parameter(torch.zeros(n_outputs))

    @staticmethod
    def _network(sizes):
        first, *others = (nn.Linear(*size) for size in sizes)
        return nn.Sequential(first, *(part for linear in others for part in (nn.LeakyReLU(0.2), linear)))

    def covariance(self, X1, X2):
        """(B, D, N1, N2), Matérn-5/2."""
        rate = math.sqrt(5.0) * torch.exp(-self.log_lengthscale)[:, None, None]
        a = torch.cdist(X1, X2)[:, None] * rate
        return self.log_variance.exp()[:, None, None] * (1 + a + a.square() / 3) * torch.exp(-a)

    def forward(self, x, anchor):
        """Marginals (S, B, D) at ``x`` (S, B, Q), and KL divergences (B,)."""
        n_inducing, n_outputs = self.shape
        Z = self.points(anchor).unflatten(-1, (n_inducing, -1))  # (B, M, Q)
        mean, raw = (net(anchor).unflatten(-1, (n_inducing, n_outputs)).mT for net in (self.mean, self.scale))
        scale = softplus(raw) + SCALE_FLOOR  # (B, D, M)
        K = self.covariance(Z, Z) + JITTER * torch.eye(n_inducing, dtype=Z.dtype, device=Z.device)
        L = torch.linalg.cholesky(K)
        A = torch.linalg.solve_triangular(L, self.covariance(Z, x.transpose(0, 1)), upper=False)  # (B, D, M, S)
        V = torch.linalg.solve_triangular(L.mT, A, upper=True)
        f_mean = (V * mean[..., None]).sum(-2)
        change = (V * scale[..., None]).square().sum(-2) - A.square().sum(-2)
        variance = (self.log_variance.exp()[:, None] + change).clamp(min=VARIANCE_FLOOR)
        root = torch.linalg.solve_triangular(L, torch.diag_embed(scale), upper=False)
        white = torch.linalg.solve_triangular(L, mean[..., None], upper=False)
        logs = L.diagonal(dim1=-2, dim2=-1).log().sum(-1) - scale.log().sum(-1)
        kl = 0.5 * (root.square().sum((-2, -1)) + white.square().sum((-2, -1)) - n_inducing) + logs
        return f_mean.permute(2, 0, 1), variance.permute(2, 0, 1), kl.sum(-1)


class AVDGP(nn.Module):
    """Rule AR2P with learnt quadrature points, and the evidence lower bound per row."""

    def __init__(self, n_rows, widths, n_inducing, n_points):
        super().__init__()
        self.n_rows = n_rows
        sizes = zip(widths, (*widths[1:], 1), n_inducing, strict=True)
        self.layers = nn.ModuleList(Layer(*size) for size in sizes)
        self.points = nn.ParameterList(torch.randn(n_points, 1, width) for width in widths[1:])
        self.logits = nn.Parameter(torch.zeros(n_points))
        self.log_noise = nn.Parameter(torch.tensor(math.log(0.01)))

    def forward(self, X, y):
        """The bound of a minibatch, a scalar."""
        weight = self.logits.softmax(0)
        F, anchor, kl = X[None], X, 0.0
        for depth, layer in enumerate(self.layers):
            mean, variance, cost = layer(F, anchor)
            kl = kl + cost
            if depth < len(self.points):
                F = mean + variance.sqrt() * self.points[depth]
                anchor = torch.einsum("s,sbd->bd", weight, mean) if depth else mean[0]
        squares = (y - mean).square() + variance
        fit = -0.5 * (squares / self.log_noise.exp() + self.log_noise + math.log(2 * math.pi)).sum(-1)  # (S, B)
        return (weight @ fit).mean() - kl.mean() / self.n_rows
