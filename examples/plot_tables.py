"""
A table as it is: categories and missing cells
==============================================

What does a flat cost, if nobody wrote down how large it is? Tables that people fill in have words and gaps in them.
This example fits a Gaussian process (GP) to such a data frame without any preparation. Then it looks at what the model
makes of a district that it has never seen, and of cells that are missing.
"""

# %%
# Flats that were let
# -------------------
# Rents depend on the size, the year in which the house was built, the district, and the state of the kitchen. Size and
# year belong together: old flats are larger here. A fifth of all cells of these two columns are missing.

import numpy as np
import pandas as pd

DISTRICTS = {"Harbour": 1.35, "Old town": 1.2, "University": 1.1, "Park": 1.0, "Station": 0.9, "Mills": 0.75}


def make_flats(n_rows, random_state):
    """A table of flats, complete, and their rents."""
    rng = np.random.default_rng(random_state)
    year = np.round(rng.uniform(1890, 2020, n_rows))
    size = np.clip(110 - 0.45 * (year - 1890) + rng.normal(0, 14, n_rows), 20, None)
    X = pd.DataFrame(
        {
            "size": size.round(),
            "year": year,
            "district": rng.choice(list(DISTRICTS), n_rows),
            "kitchen": rng.choice(["none", "old", "new"], n_rows, p=[0.2, 0.5, 0.3]),
        }
    )
    kitchen = X["kitchen"].map({"none": -60.0, "old": 0.0, "new": 90.0})
    charm = 150 * np.exp(-(((year - 1905) / 15) ** 2)) + 2 * np.clip(year - 1990, 0, None)
    rent = 9.5 * size * X["district"].map(DISTRICTS) + charm + kitchen + rng.normal(0, 35, n_rows)
    return X, rent.to_numpy()


complete, y = make_flats(1400, random_state=0)
rng = np.random.default_rng(1)
X = complete.copy()
for column in ("size", "year"):
    X.loc[rng.random(len(X)) < 0.2, column] = np.nan
X_train, y_train, X_test, y_test = X[:700], y[:700], X[700:], y[700:]
print(X_train.assign(rent=y_train.round()).head(6).to_string())

# %%
# The frame goes into ``fit`` as it is
# ------------------------------------
# Columns of text are categories, which ``is_categorical_`` confirms. Rows with gaps scatter more around the function
# than others do, so the noise is allowed to differ from row to row. A hundred and fifty inducing points are enough for
# a function as smooth as this one; by default there are more. Boosted trees, which take such tables too, are fitted
# beside it.

from sklearn.ensemble import HistGradientBoostingRegressor

from skdgp import SOLVEGPRegressor
from skdgp.metrics import coverage

model = SOLVEGPRegressor(50, 100, likelihood="heteroskedastic", random_state=0).fit(X_train, y_train)
trees = HistGradientBoostingRegressor(categorical_features="from_dtype", random_state=0)
trees.fit(X_train.astype({"district": "category", "kitchen": "category"}), y_train)
print("Categories:", list(X.columns[model.is_categorical_]))

gaps = X_test[["size", "year"]].isna().sum(axis=1).to_numpy()
errors = pd.DataFrame(
    {
        "GP": model.predict(X_test) - y_test,
        "Boosted trees": trees.predict(X_test.astype({"district": "category", "kitchen": "category"})) - y_test,
    }
)
by_gaps = errors.pow(2).groupby(gaps).mean().pow(0.5).round().rename_axis("missing cells")
covered = [
    coverage(y_test[gaps == n], *model.predict_interval(X_test[gaps == n], confidence_level=0.9).T) for n in range(3)
]
print(by_gaps.assign(**{"GP, 90 % intervals hold": covered}).round(3).to_string())

# %%
# A flat loses its entries
# ------------------------
# We take one flat and forget its entries, one after another. If the model knows what it does not know, its interval
# widens with what each entry is worth: much for the size, less for the year, which the size tells in part. A district
# that no training row has is not an error: the prediction is near the mean over districts, and less certain.

flat = pd.DataFrame({"size": [70.0], "year": [1985.0], "district": ["Mills"], "kitchen": ["old"]})
cases = {
    "all known": flat,
    "year missing": flat.assign(year=np.nan),
    "size missing": flat.assign(size=np.nan),
    "both missing": flat.assign(size=np.nan, year=np.nan),
    "a new district": flat.assign(district="Airport"),
}
intervals = {name: model.predict_interval(case, confidence_level=0.9)[0] for name, case in cases.items()}
means = {name: model.predict(case)[0] for name, case in cases.items()}

# %%
# Which columns matter
# --------------------
# Lengthscales of numbers and of categories cannot be compared. What can be compared is the loss when a column is
# shuffled, and scikit-learn does that with a data frame as it is.

from sklearn.inspection import permutation_importance

importance = permutation_importance(
    model, X_test, y_test, scoring="neg_root_mean_squared_error", n_repeats=5, random_state=0
)

# %%
# Pictures
# --------

import matplotlib.pyplot as plt

fig, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.6), layout="constrained")

sizes = np.linspace(25, 120, 60)
for district, colour in (("Harbour", "#0b5fa5"), ("Mills", "#5f8f4e"), ("Airport", "#c8762b")):
    line = pd.DataFrame({"size": sizes, "year": 1950.0, "district": district, "kitchen": "old"})
    mean, std = model.predict(line, return_std=True, latent=True)
    label = f"{district} (never seen)" if district == "Airport" else district
    left.plot(sizes, mean, color=colour, label=label)
    left.fill_between(sizes, mean - 1.64 * std, mean + 1.64 * std, color=colour, alpha=0.2, linewidth=0)
left.set(xlabel="size (square metres)", ylabel="rent", title="Mean rents of houses of 1950, with 90 % bands")
left.legend(frameon=False, loc="upper left")

for row, name in enumerate(cases):
    middle.plot(intervals[name], [row, row], color="#0b5fa5", linewidth=6, alpha=0.35, solid_capstyle="butt")
    middle.scatter(means[name], row, color="#0b5fa5", zorder=3)
middle.set(yticks=range(len(cases)), yticklabels=list(cases), xlabel="rent", title="90 % intervals of one flat")
middle.invert_yaxis()

order = importance.importances_mean.argsort()
right.barh(
    X.columns[order], importance.importances_mean[order], xerr=importance.importances_std[order], color="#8a8a8a"
)
right.set(xlabel="loss of root mean squared error", title="A column is shuffled")
plt.show()
