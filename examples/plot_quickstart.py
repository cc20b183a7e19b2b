"""
Quick start: a prediction and its uncertainty
=============================================

How far will a patient's diabetes have progressed in a year, and how sure can you be of the answer? A single number does
not answer the second half of this question. This example fits a deep Gaussian process (GP) to 294 patients. Then it
predicts a *distribution* for each of 148 other patients, and checks these distributions against what happened. Two
models of scikit-learn are checked in the same way.

From a clone of the repository, ``python examples/plot_quickstart.py`` prints the scores and saves the picture.
"""

# %%
# The patients
# ------------
# There are ten measurements of each patient. The target says how far the disease had progressed one year later, on a
# scale from 25 to 346.

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

X, y = load_diabetes(return_X_y=True, scaled=False)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=1 / 3, random_state=0)
print(f"{len(X_train)} patients to learn from, {len(X_test)} to be tested on, {X.shape[1]} measurements of each")

# %%
# Fit a deep Gaussian process
# ---------------------------
# A deep GP is a chain of Gaussian processes (:doc:`/deep_gps`). Here it is an estimator of scikit-learn, with ``fit``
# and ``predict``. The estimator standardises features and targets itself, so you need no scaler. All predictions are in
# the units of ``y``. :meth:`~skdgp.AVDGPRegressor.predict_dist` returns the whole distribution of each patient's
# progression, noise included.

import sys

from skdgp import AVDGPRegressor

in_a_terminal = sys.stdout.isatty()  # only a terminal can show the line of progress
model = AVDGPRegressor(verbose=in_a_terminal, random_state=0).fit(X_train, y_train)
dist = model.predict_dist(X_test)

lower, upper = dist.interval(0.9)
chance = 1 - dist.cdf(200)
for row in range(3):
    print(
        f"Patient {row}: the predicted mean is {dist.mean[row]:.0f}, and the 90 % interval is {lower[row]:.0f} to "
        f"{upper[row]:.0f}. The probability of more than 200 is {chance[row]:.2f}. In fact it was {y_test[row]:.0f}."
    )

# %%
# Two models to compare with
# --------------------------
# An exact Gaussian process predicts a mean and a standard deviation for each patient. Boosted trees predict only a
# mean. The usual remedy is to give all rows the same standard deviation, that of the cross-validated residuals.
# :meth:`PredictiveDistribution.gaussian <skdgp.PredictiveDistribution.gaussian>` makes distributions from the means and
# standard deviations, so that all three models can be scored in the same way.

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
# The root mean squared error (RMSE) judges only the means. Two other scores judge the whole distributions: the negative
# log predictive density (NLL) and the continuous ranked probability score (CRPS). Both are small if a distribution is
# narrow and the observation lies where its density is high. *Coverage* is the share of patients whose progression lies
# inside their 90 % interval. It should be 90 %, give or take 5 % with so few patients.

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
# The left picture shows the patients in the order of their predicted means. Each has an interval of its own, and it is
# wider where the model is less sure. Here the intervals are almost equally wide, because most of their width is noise.
# The right picture checks all quantiles at once. For each probability p, it shows the share of patients below the
# predicted quantile p. For a perfectly calibrated model with very many patients, this curve is the diagonal. With so
# few patients, most points of a calibrated model's curve lie in the grey band. The curve of the deep GP leaves the band
# a little in a few places, and those of the other two models do so less.
#
# :doc:`/predictions` describes what else you can ask of a fitted model.

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
