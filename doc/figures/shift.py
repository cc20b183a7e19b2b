"""Coverage of intervals on rows that have been moved away from the training data."""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import cross_val_predict

from skdgp import AVDGPRegressor, DSDGPRegressor, PredictiveDistribution
from skdgp.metrics import coverage

SHIFTS = np.linspace(0, 1.5, 13)


def friedman(X, rng):
    """Friedman's first function and noise of deviation one."""
    signal = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    return signal + rng.standard_normal(len(X))


rng = np.random.default_rng(0)
X, X_test = rng.random((500, 5)), rng.random((1000, 5))
y = friedman(X, rng)

trees = HistGradientBoostingRegressor(random_state=0).fit(X, y)
std = np.std(y - cross_val_predict(trees, X, y, cv=5))
kernel = ConstantKernel(10.0) * RBF(np.ones(5), (1e-2, 1e3)) + WhiteKernel()
exact = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(X, y)
avdgp = AVDGPRegressor(n_estimators=1, random_state=0).fit(X, y)
dsdgp = DSDGPRegressor(n_estimators=1, max_iter=100, random_state=0).fit(X, y)
models = {
    "AVDGPRegressor": avdgp.predict_dist,
    "DSDGPRegressor": dsdgp.predict_dist,
    "exact GP": lambda X: PredictiveDistribution.gaussian(*exact.predict(X, return_std=True)),
    "boosted trees, constant width": lambda X: PredictiveDistribution.gaussian(trees.predict(X), np.full(len(X), std)),
}

figure, ax = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
ax.axhline(90, color="#8a8a8a", linewidth=1)
for (name, predict), color in zip(models.items(), ("#0b5fa5", "#c8762b", "#333333", "#5f8f4e"), strict=True):
    covered = []
    for shift in SHIFTS:
        moved = X_test + shift * np.array([0, 0, 1, 0, 0])
        covered.append(100 * coverage(friedman(moved, rng), *predict(moved).interval(0.9)))
    ax.plot(SHIFTS, covered, color=color, linewidth=2, marker="o", markersize=3, label=name)
ax.set(xlim=(-0.02, SHIFTS[-1]), ylim=(0, 100), xlabel="How far the third feature was moved (it was between 0 and 1)")
ax.set_ylabel("Rows in their 90 % intervals, %")
ax.set_title("No model stays calibrated on rows unlike those it has learnt from", loc="left", fontsize=11)
ax.legend(frameon=False)
