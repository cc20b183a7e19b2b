"""
Quick start: a prediction, and how sure it is
=============================================

How far will a patient's diabetes have progressed in a year? A single number is half an answer. This example fits a
deep Gaussian process to 294 patients, has it predict a *distribution* for each of 148 others, and checks the
distributions against what happened, beside two models of scikit-learn.

From a clone, ``python examples/plot_quickstart.py`` prints the scores and saves the last picture.
"""

# %%
# The patients
# ------------
# Ten measurements of each patient, and the disease's progression one year later, from 25 to 346.

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

X, y = load_diabetes(return_X_y=True, scaled=False)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=1 / 3, random_state=0)
print(f"{len(X_train)} patients to learn from, {len(X_test)} to be tested on, {X.shape[1]} measurements of each")

# %%
# A deep Gaussian process
# -----------------------
# It is a scikit-learn estimator: ``fit`` and ``predict``. Features and targets are standardised inside, so that no
# scaler is needed, and everything that comes out is in the units of ``y``. :meth:`~skdgp.AVDGPRegressor.predict_dist`
# returns the whole distribution of each patient's progression, noise included.

import sys

from skdgp import AVDGPRegressor

in_a_terminal = sys.stdout.isatty()  # where a line can show progress
model = AVDGPRegressor(verbose=in_a_terminal, random_state=0).fit(X_train, y_train)
dist = model.predict_dist(X_test)

lower, upper = dist.interval(0.9)
chance = 1 - dist.cdf(200)
for row in range(3):
    print(
        f"Patient {row}: {dist.mean[row]:.0f} expected, between {lower[row]:.0f} and {upper[row]:.0f} with probability "
        f"0.9, above 200 with probability {chance[row]:.2f}. It became {y_test[row]:.0f}."
    )

# %%
# Two models to compare with
# --------------------------
# An exact Gaussian process predicts a mean and a standard deviation. Boosted trees predict a mean alone; the
# usual way out gives all rows the standard deviation of cross-validated residuals.
# :meth:`PredictiveDistribution.gaussian <skdgp.PredictiveDistribution.gaussian>` makes distributions of both.

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import PredictiveDistribution

kernel = ConstantKernel() * RBF(np.ones(X.shape[1]), (1e-2, 1e6)) + WhiteKernel()
exact = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True, random_state=0))
exact_dist = PredictiveDistribution.gaussian(*exact.fit(X_train, y_train).predict(X_test, return_std=True))

trees = HistGradientBoostingRegressor(random_state=0)
residuals = y_train - cross_val_predict(trees, X_train, y_train, cv=5)
trees_mean = trees.fit(X_train, y_train).predict(X_test)
trees_dist = PredictiveDistribution.gaussian(trees_mean, np.full(len(X_test), residuals.std()))

# %%
# Scores
# ------
# RMSE judges means alone. The negative log predictive density (NLL) and the continuous ranked probability score (CRPS)
# judge distributions: both are small if probability lies where the truth is, and no more widely than need be. Coverage
# is the share of patients inside their 90 % intervals. It should be 90 %, give or take 5 % with so few patients.

from skdgp.metrics import coverage, crps, negative_log_predictive_density

predictions = {"AVDGPRegressor": dist, "Exact GP": exact_dist, "Boosted trees": trees_dist}
print(f"\n{'':<16}{'RMSE':>8}{'NLL':>8}{'CRPS':>8}{'90 % coverage':>16}")
for name, predicted in predictions.items():
    rmse, nll = np.sqrt(np.mean((y_test - predicted.mean) ** 2)), negative_log_predictive_density(y_test, predicted)
    covered = 100 * coverage(y_test, *predicted.interval(0.9))
    print(f"{name:<16}{rmse:>8.2f}{nll:>8.3f}{crps(y_test, predicted):>8.2f}{covered:>14.1f} %")

# %%
# Pictures
# --------
# Left, the patients sorted by predicted mean, each with an interval of its own: it is wider where
# the model knows less. Right, intervals of every probability at once. A curve within the grey band is what a
# calibrated model may well show with so few patients.

import matplotlib.pyplot as plt

from skdgp.display import CalibrationDisplay, PredictiveIntervalDisplay

fig, (left, right) = plt.subplots(1, 2, figsize=(12, 5), width_ratios=(1.5, 1), layout="constrained")
PredictiveIntervalDisplay.from_predictions(dist, y_test, ax=left)
left.set_ylabel("progression after one year")
for name, predicted in predictions.items():
    CalibrationDisplay.from_predictions(y_test, predicted, name=name, ax=right)
fig.savefig("quickstart.png", dpi=100)
print("\nPicture saved to quickstart.png")
plt.show()
