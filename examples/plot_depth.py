"""
Does depth help? Ask cross-validation
=====================================

How many layers should a deep Gaussian process have? That depends on the data. The number of layers is a parameter like
any other, so scikit-learn's search can choose it. This example searches twice. The first table is a photograph: the
model sees some of its pixels and predicts the others. The second table is the records of diabetes patients.
"""

# %%
# A photograph, and patients
# --------------------------
# In the photograph each pixel is a row. Its two features are the place of the pixel, and its target is the brightness,
# from 0 to 1. Three thousand random pixels are known. A photograph has edges and smooth parts. The *lengthscale* is the
# distance over which a Gaussian process expects a function to change, and no single lengthscale suits both.
#
# Of each patient there are ten measurements. The target says how far the disease had progressed after a year.

# sphinx_gallery_thumbnail_number = 0
import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_sample_image

photo = load_sample_image("flower.jpg").mean(axis=-1)[::4, ::4] / 255
rows, columns = np.indices(photo.shape)
# The height of the picture is 1.
pixels = np.column_stack([columns.ravel(), rows.ravel()]) / len(photo)
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
# ``hidden_dims`` contains the widths of the hidden layers, which are all layers but the last. With ``()`` there is one
# layer, and the model is an ordinary sparse Gaussian process. Here hidden layers are as wide as there are features, and
# they start as the identity. The score is the mean log density of held-out targets, which judges means and
# uncertainties together. Cross-validation splits the rows into two random halves, and does so twice. The model learns
# from one half, and the other half scores it.

from sklearn.model_selection import GridSearchCV, ShuffleSplit

from skdgp import DSDGPRegressor
from skdgp.metrics import log_density_scorer

depths = (1, 2, 3)
model = DSDGPRegressor(
    n_inducing=64,
    n_estimators=1,
    max_iter=40,
    base=None,
    n_neighbors=0,
    random_state=0,
)
halves = ShuffleSplit(2, test_size=0.5, random_state=0)
searches = {}
for story, (X, y) in stories.items():
    grid = {"hidden_dims": [(X.shape[1],) * (depth - 1) for depth in depths]}
    searches[story] = GridSearchCV(
        model, grid, scoring=log_density_scorer, cv=halves, n_jobs=-1
    ).fit(X, y)

print(f"{'':<12}{'layers':>6}{'log density':>13}{'seconds':>9}")
for story, search in searches.items():
    results = search.cv_results_
    for depth, score, seconds in zip(
        depths,
        results["mean_test_score"],
        results["mean_fit_time"],
        strict=True,
    ):
        print(f"{story:<12}{depth:>6}{score:>13.3f}{seconds:>9.1f}")

# %%
# What depth gains
# ----------------
# Both panels have the same scale. The grey lines are the two splits, and the blue line is their mean. For the
# photograph it pays to have a second layer, and a third layer adds a little. For the patients, the gain is about as
# large as the difference between the two splits, so it may be chance. Depth costs time there, and gains next to
# nothing. A search tells you which kind of table you have.

import matplotlib.pyplot as plt

fig, axes = plt.subplots(
    1, 2, figsize=(10, 4), sharey=True, layout="constrained"
)
for ax, (story, search) in zip(axes, searches.items(), strict=True):
    splits = np.array(
        [
            search.cv_results_[f"split{split}_test_score"]
            for split in range(halves.n_splits)
        ]
    )
    gains = splits - splits[:, :1]
    ax.plot(depths, gains.T, color="#8a8a8a", linewidth=1, alpha=0.6)
    ax.plot(
        depths, gains.mean(axis=0), color="#0b5fa5", linewidth=2.5, marker="o"
    )
    best = search.best_index_
    layers = "1 layer" if best == 0 else f"{depths[best]} layers"
    ax.set_title(
        f"{story}: best with {layers}, gain {gains.mean(axis=0)[best]:+.2f}"
    )
    ax.set(xlabel="layers", xticks=depths)
gain = {
    story: np.ptp(search.cv_results_["mean_test_score"])
    for story, search in searches.items()
}
assert gain["Photograph"] > 0.2 and gain["Patients"] < 0.1
axes[0].set_ylabel("gain in log density over one layer (nats)")
plt.show()

# %%
# What the models predict
# -----------------------
# The search has fitted the best depth again, to all known pixels. For comparison, we fit one layer to the same pixels.
# The RMSE is that of the unknown pixels. The picture below each prediction shows how unsure the model is of each pixel:
# it is the standard deviation of the predictive distribution. The model with one layer is about equally unsure
# everywhere. The deep model knows where the edges are, and that it may be wrong there.

best = searches["Photograph"].best_estimator_
one = clone(best).set_params(hidden_dims=()).fit(*stories["Photograph"])
seen, unknown = np.full(photo.size, np.nan), np.ones(photo.size, dtype=bool)
seen[known], unknown[known] = photo.ravel()[known], False
panels = [("The photograph", photo), (f"The {len(known)} pixels known", seen)]
for model in (one, best):
    mean, std = model.predict(pixels, return_std=True)
    error, n_layers = (
        np.sqrt(np.mean((mean - photo.ravel())[unknown] ** 2)),
        len(model.hidden_dims) + 1,
    )
    panels += [
        (f"{n_layers} layer{'s' * (n_layers > 1)}: RMSE {error:.3f}", mean),
        ("Standard deviation", std),
    ]

fig, axes = plt.subplots(2, 3, figsize=(12, 6), layout="constrained")
for ax, (title, values) in zip(axes.T.flat, panels, strict=True):
    spread = "deviation" in title
    limits = (
        {"cmap": "magma", "vmin": 0, "vmax": 0.2}
        if spread
        else {"cmap": "gray", "vmin": 0, "vmax": 1}
    )
    shown = ax.imshow(np.reshape(values, photo.shape), **limits)
    ax.set(title=title, xticks=[], yticks=[])
fig.colorbar(
    shown,
    ax=axes[1, 1:],
    location="bottom",
    shrink=0.5,
    aspect=40,
    label="standard deviation of the brightness",
)
plt.show()
