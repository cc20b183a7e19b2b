"""
A table with categories and missing cells
=========================================

What does it cost to rent a flat, if nobody wrote down how large it is? Tables that people fill in contain words, and
some of their cells are empty. This example fits a Gaussian process (GP) to such a data frame without any preparation.
Then it looks at two special cases: a flat in a district that the model has never seen, and a flat with missing cells.
:doc:`/tables` explains how the model treats both.
"""

# %%
# The data: flats and their rents
# -------------------------------
# The rent of a flat depends on its size, the year in which the house was built, the district, and the state of the
# kitchen. Rents are in euros a month. Size and year are related, since old flats are larger in this table. A fifth of
# the cells in these two columns are missing.

# sphinx_gallery_thumbnail_number = 0
import numpy as np
import pandas as pd

DISTRICTS = {
    "Harbour": 1.35,
    "Old town": 1.2,
    "University": 1.1,
    "Park": 1.0,
    "Station": 0.9,
    "Mills": 0.75,
}


def make_flats(n_rows, random_state):
    """A table of flats without missing cells, and their rents."""
    rng = np.random.default_rng(random_state)
    year = np.round(rng.uniform(1890, 2020, n_rows))
    size = np.clip(
        110 - 0.45 * (year - 1890) + rng.normal(0, 14, n_rows), 20, None
    )
    X = pd.DataFrame(
        {
            "size": size.round(),
            "year": year,
            "district": rng.choice(list(DISTRICTS), n_rows),
            "kitchen": rng.choice(
                ["none", "old", "new"], n_rows, p=[0.2, 0.5, 0.3]
            ),
        }
    )
    kitchen = X["kitchen"].map({"none": -60.0, "old": 0.0, "new": 90.0})
    charm = 150 * np.exp(-(((year - 1905) / 15) ** 2)) + 2 * np.clip(
        year - 1990, 0, None
    )
    rent = (
        9.5 * size * X["district"].map(DISTRICTS)
        + charm
        + kitchen
        + rng.normal(0, 35, n_rows)
    )
    return X, rent.to_numpy()


complete, y = make_flats(1400, random_state=0)
rng = np.random.default_rng(1)
X = complete.copy()
for column in ("size", "year"):
    X.loc[rng.random(len(X)) < 0.2, column] = np.nan
X_train, y_train, X_test, y_test = X[:700], y[:700], X[700:], y[700:]
print(X_train.assign(rent=y_train.round()).head(6).to_string())

# %%
# Fit the data frame as it is
# ---------------------------
# Columns of text become categories; ``is_categorical_`` says which columns these are. The rent of a flat is harder to
# predict if cells of its row are missing. So such rents scatter more around the predictions, and we let the noise
# differ from row to row (``likelihood="heteroskedastic"``).
#
# The model summarises what it has learnt by the function's values at some places, the *inducing points*. It has two
# sets of them here, with 150 points together. These are enough for a function as smooth as this one. By default there
# are more.
#
# Boosted trees learn from the same table, for comparison. The output has the root mean squared error (RMSE) of both
# models, by the number of missing cells in a row: that of the GP is smaller. The last column is the share of rents
# inside the GP's 90 % intervals.

from sklearn.ensemble import HistGradientBoostingRegressor

from skdgp import SOLVEGPRegressor
from skdgp.metrics import coverage

model = SOLVEGPRegressor(
    50, 100, likelihood="heteroskedastic", random_state=0
).fit(X_train, y_train)
trees = HistGradientBoostingRegressor(
    categorical_features="from_dtype", random_state=0
)
trees.fit(
    X_train.astype({"district": "category", "kitchen": "category"}), y_train
)
print("Categories:", list(X.columns[model.is_categorical_]))

gaps = X_test[["size", "year"]].isna().sum(axis=1).to_numpy()
errors = pd.DataFrame(
    {
        "RMSE, GP": model.predict(X_test) - y_test,
        "RMSE, boosted trees": trees.predict(
            X_test.astype({"district": "category", "kitchen": "category"})
        )
        - y_test,
    }
)
by_gaps = (
    errors.pow(2)
    .groupby(gaps)
    .mean()
    .pow(0.5)
    .round()
    .rename_axis("missing cells")
)
covered = [
    coverage(
        y_test[gaps == n],
        *model.predict_interval(X_test[gaps == n], confidence_level=0.9).T,
    )
    for n in range(3)
]
print(
    by_gaps.assign(**{"inside the GP's 90 % intervals": covered})
    .round(3)
    .to_string()
)
assert (by_gaps["RMSE, GP"] < by_gaps["RMSE, boosted trees"]).all()

# %%
# How a missing cell widens the interval
# --------------------------------------
# We take one flat and delete some of its cells. A good model widens its interval by as much as the missing cell
# matters. So the interval should become much wider without the size. Without the year it should widen less, because the
# size already says roughly how old the house is.
#
# In the last case all cells are known, but no training row has this district. That is not an error. The prediction is
# near the mean over the districts, and less certain.

flat = pd.DataFrame(
    {
        "size": [70.0],
        "year": [1985.0],
        "district": ["Mills"],
        "kitchen": ["old"],
    }
)
cases = {
    "all known": flat,
    "year missing": flat.assign(year=np.nan),
    "size missing": flat.assign(size=np.nan),
    "both missing": flat.assign(size=np.nan, year=np.nan),
    "new district": flat.assign(district="Airport"),
}
intervals = {
    name: model.predict_interval(case, confidence_level=0.9)[0]
    for name, case in cases.items()
}
means = {name: model.predict(case)[0] for name, case in cases.items()}
width = {name: np.ptp(interval) for name, interval in intervals.items()}
assert width["all known"] < width["year missing"]
assert 2 * width["year missing"] < width["size missing"]
assert 2 * width["all known"] < width["new district"]

# %%
# Which columns matter
# --------------------
# Lengthscales do not answer this question, since those of numbers and those of categories cannot be compared. Instead,
# you can shuffle a column and see how much the error grows. ``permutation_importance`` of scikit-learn does this, and
# takes the data frame as it is.

from sklearn.inspection import permutation_importance

importance = permutation_importance(
    model,
    X_test,
    y_test,
    scoring="neg_root_mean_squared_error",
    n_repeats=5,
    random_state=0,
)

# %%
# Pictures
# --------
# Left: the mean rent in three districts, for flats of different sizes. All of them have an old kitchen and are in
# houses of 1950. Middle: the flat whose cells we have deleted. Right: how much the error grows when a column is
# shuffled.

import matplotlib.pyplot as plt

fig, (left, middle, right) = plt.subplots(
    1, 3, figsize=(14, 4.6), layout="constrained"
)

sizes = np.linspace(25, 120, 60)
for district, colour in (
    ("Harbour", "#0b5fa5"),
    ("Mills", "#5f8f4e"),
    ("Airport", "#c8762b"),
):
    line = pd.DataFrame(
        {"size": sizes, "year": 1950.0, "district": district, "kitchen": "old"}
    )
    mean, std = model.predict(line, return_std=True, latent=True)
    label = f"{district} (never seen)" if district == "Airport" else district
    left.plot(sizes, mean, color=colour, label=label)
    left.fill_between(
        sizes,
        mean - 1.64 * std,
        mean + 1.64 * std,
        color=colour,
        alpha=0.2,
        linewidth=0,
    )
left.set(
    xlabel="size (square metres)",
    ylabel="rent (€)",
    title="Mean rent, houses of 1950, 90 % band",
)
left.legend(frameon=False, loc="upper left")

for row, name in enumerate(cases):
    middle.plot(
        intervals[name],
        [row, row],
        color="#0b5fa5",
        linewidth=6,
        alpha=0.35,
        solid_capstyle="butt",
    )
    middle.scatter(means[name], row, color="#0b5fa5", zorder=3)
middle.set(
    yticks=range(len(cases)),
    yticklabels=list(cases),
    xlabel="rent (€)",
    title="90 % interval of one flat",
)
middle.invert_yaxis()

order = importance.importances_mean.argsort()
right.barh(
    X.columns[order],
    importance.importances_mean[order],
    xerr=importance.importances_std[order],
    color="#8a8a8a",
)
right.set(
    xlabel="increase of the root mean squared error (€)",
    title="Error after shuffling a column",
)
plt.show()
