"""
Does depth help? Ask cross-validation
=====================================

How many layers should a deep Gaussian process have? That depends on the data, and as the number of layers is a
parameter like any other, scikit-learn's search can say. This example asks it twice: for a photograph, of
which a model sees some pixels and predicts the others, and for the records of diabetes patients.
"""

# %%
# A photograph, and patients
# --------------------------
# The photograph is a function of two features, the place of a pixel. Of its brightness, from 0 to 1, three thousand
# random pixels are known. It has edges and smooth parts, and no *lengthscale*, the distance over which a
# Gaussian process takes a function to change, suits both. Of each patient there are ten measurements, and the
# disease's progression after a year.

import numpy as np
from sklearn.datasets import load_diabetes, load_sample_image

photo = load_sample_image("flower.jpg").mean(axis=-1)[::4, ::4] / 255
rows, columns = np.indices(photo.shape)
pixels = np.column_stack([columns.ravel(), rows.ravel()]) / len(photo)  # in heights of the picture
known = np.random.default_rng(0).permutation(photo.size)[:3000]
stories = {
    "Photograph": (pixels[known], photo.ravel()[known]),
    "Patients": load_diabetes(return_X_y=True),
}
for story, (X, _) in stories.items():
    print(f"{story}: {len(X)} rows, {X.shape[1]} features")

# %%
# A search over depth
# -------------------
# ``hidden_dims`` are the widths of the layers before the last: ``()`` is one layer, an ordinary sparse Gaussian
# process. Hidden layers are as wide as there are features, and start as the identity. The score is the mean log
# density of held-out targets, which judges means and uncertainties together. Two random halves, twice.

from sklearn.model_selection import GridSearchCV, ShuffleSplit

from skdgp import DSDGPRegressor
from skdgp.metrics import log_density_scorer

depths = (1, 2, 3, 4)
model = DSDGPRegressor(n_inducing=64, n_estimators=1, max_iter=40, base=None, n_neighbors=0, random_state=0)
halves = ShuffleSplit(2, test_size=0.5, random_state=0)
searches = {}
for story, (X, y) in stories.items():
    grid = {"hidden_dims": [(X.shape[1],) * (depth - 1) for depth in depths]}
    searches[story] = GridSearchCV(model, grid, scoring=log_density_scorer, cv=halves, n_jobs=-1).fit(X, y)

print(f"{'':<12}{'layers':>6}{'log density':>13}{'seconds':>9}")
for story, search in searches.items():
    results = search.cv_results_
    for depth, score, seconds in zip(depths, results["mean_test_score"], results["mean_fit_time"], strict=True):
        print(f"{story:<12}{depth:>6}{score:>13.3f}{seconds:>9.1f}")

# %%
# What depth gains
# ----------------
# Both panels have the same scale, and grey lines are single splits. The second layer pays for the photograph. For the
# patients, what more layers gain is no more than the difference between two splits: there, depth costs time and buys
# nothing.

import matplotlib.pyplot as plt

fig, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for ax, (story, search) in zip(axes, searches.items(), strict=True):
    splits = np.array([search.cv_results_[f"split{split}_test_score"] for split in range(halves.n_splits)])
    gains = splits - splits[:, :1]
    ax.plot(depths, gains.T, color="#8a8a8a", linewidth=1, alpha=0.6)
    ax.plot(depths, gains.mean(axis=0), color="#0b5fa5", linewidth=2.5, marker="o")
    best = search.best_index_
    layers = "1 layer" if best == 0 else f"{depths[best]} layers"
    ax.set_title(f"{story}: best with {layers}, {gains.mean(axis=0)[best]:+.2f}")
    ax.set(xlabel="layers", xticks=depths)
axes[0].set_ylabel("gain in log density over one layer, nats")
plt.show()

# %%
# What that looks like
# --------------------
# The search has fitted the best depth again, to all known pixels; one layer is fitted to the same beside it. RMSE is
# that of the unknown pixels. Below is how unsure each model is of a pixel, the standard deviation of its predictive
# distribution. One layer is about as unsure everywhere. The deep model knows where the edges are, and that it is
# there that it may be wrong.

best = searches["Photograph"].best_estimator_
one = DSDGPRegressor(**best.get_params() | {"hidden_dims": ()}).fit(*stories["Photograph"])
seen, unknown = np.full(photo.size, np.nan), np.ones(photo.size, dtype=bool)
seen[known], unknown[known] = photo.ravel()[known], False
panels = [("The photograph", photo), (f"The {len(known)} pixels known", seen)]
for model in (one, best):
    mean, std = model.predict(pixels, return_std=True)
    error, n_layers = np.sqrt(np.mean((mean - photo.ravel())[unknown] ** 2)), len(model.hidden_dims) + 1
    panels += [(f"{n_layers} layer{'s' * (n_layers > 1)}: RMSE {error:.3f}", mean), ("Standard deviation", std)]

fig, axes = plt.subplots(2, 3, figsize=(12, 6), layout="constrained")
for ax, (title, values) in zip(axes.T.flat, panels, strict=True):
    spread = "deviation" in title
    limits = {"cmap": "magma", "vmin": 0, "vmax": 0.2} if spread else {"cmap": "gray", "vmin": 0, "vmax": 1}
    shown = ax.imshow(np.reshape(values, photo.shape), **limits)
    ax.set(title=title, xticks=[], yticks=[])
fig.colorbar(shown, ax=axes[1, 1:], location="bottom", shrink=0.5, aspect=40, label="brightness")
plt.show()
