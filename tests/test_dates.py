"""Dates and durations among the columns of a table."""

import pickle
from datetime import date, timedelta

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from skdgp import AVDGPRegressor, DSDGPClassifier, DSDGPRegressor, SOLVEGPRegressor
from skdgp.display import LatentDisplay
from skdgp.tables.columns import Columns
from skdgp.tables.dates import Calendar, days_of, zone_of
from skdgp.tables.encoding import Encoding

SMALL = {"n_inducing": 8, "max_iter": 2, "base": None, "n_neighbors": 0, "random_state": 0}
DAYS = pd.date_range("2019-06-03", periods=800)
Y = np.random.default_rng(0).normal(size=len(DAYS))


def small(**options):
    return SOLVEGPRegressor(**(SMALL | {"n_orthogonal": 0} | options))


def frame(dates=DAYS):
    return pd.DataFrame({"size": np.linspace(0.0, 1.0, len(dates)), "when": dates})


class TestDays:
    """Columns as numbers of days; the oracle is pandas."""

    @pytest.mark.parametrize(
        "values",
        [
            DAYS.to_series(),
            DAYS.tz_localize("Asia/Tokyo").to_series(),
            DAYS.to_period("D").to_series(),
            pd.Series([day.date() for day in DAYS], dtype=object),
            pd.Series(list(DAYS.to_pydatetime()), dtype=object),
            pd.Series(DAYS.strftime("%Y-%m-%d")),
            pd.Series(DAYS.strftime("%Y-%m-%dT%H:%M:%SZ")),
        ],
        ids=["NumPy", "zone", "period", "date", "datetime", "text", "text with zone"],
    )
    def test_all_forms_are_the_same_days(self, values):
        kind, days = days_of(values)
        assert kind == "date" and np.array_equal(days, (DAYS - pd.Timestamp(0)) / pd.Timedelta(days=1))

    @pytest.mark.parametrize("form", ["timestamp", "date32"])
    def test_arrow(self, form):
        pa = pytest.importorskip("pyarrow")
        dtype = pd.ArrowDtype(pa.date32() if form == "date32" else pa.timestamp("us"))
        values = pd.Series([day.date() if form == "date32" else day for day in DAYS[:5]] + [None], dtype=dtype)
        kind, days = days_of(values)
        assert kind == "date" and np.array_equal(np.diff(days[:5]), np.ones(4)) and np.isnan(days[5])

    def test_polars(self):
        pl = pytest.importorskip("polars")
        times = pl.datetime_range(pl.datetime(2020, 1, 1), pl.datetime(2020, 1, 3), "12h", eager=True)
        expected = 18262 + np.arange(5) / 2
        assert np.array_equal(days_of(times)[1], expected)
        assert np.array_equal(days_of(times.dt.replace_time_zone("Asia/Tokyo"))[1], expected)
        assert np.array_equal(days_of(times.cast(pl.Date))[1], np.floor(expected))
        assert np.array_equal(days_of(times - times[0])[1], expected - 18262)

    def test_missing_dates_and_durations(self):
        assert np.isnan(days_of(pd.Series([pd.NaT, pd.Timestamp("2020-01-01")]))[1]).tolist() == [True, False]
        kind, days = days_of(pd.Series([timedelta(hours=12), None], dtype=object))
        assert kind == "duration" and days[0] == 0.5 and np.isnan(days[1])

    @pytest.mark.parametrize(
        "values", [["2020-01-01", "soon"], ["2020-02-30"], ["20200101"], [date(2020, 1, 1), 3.0], [None, None], [1.0]]
    )
    def test_other_columns(self, values):
        assert days_of(pd.Series(values, dtype=object)) is None


class TestParts:
    """What repeats in dates."""

    @pytest.mark.parametrize(
        ("dates", "parts"),
        [
            (DAYS, ("year", "week")),
            (DAYS[:30], ("week",)),
            (DAYS[:6], ()),
            (pd.date_range("2020-01-01", periods=48, freq="MS"), ("year",)),
            (pd.date_range("2020-01-01", periods=100, freq="h"), ("day",)),
            (pd.date_range("2020-01-01", periods=400, freq="h"), ("week", "day")),
            (DAYS[::7], ("year",)),
        ],
    )
    def test_only_what_repeats(self, dates, parts):
        assert Calendar.of(*days_of(dates.to_series())).parts == parts

    def test_columns_are_those_of_the_calendar(self):
        times = pd.date_range("1969-06-03 05:30", periods=2000, freq="7h")
        days = days_of(times.to_series())[1]
        calendar = Calendar.of("date", days)
        assert calendar.parts == ("year", "week", "day")
        columns = calendar.columns(days - calendar.origin)
        assert np.array_equal(columns[:, 2:9].argmax(axis=1), times.weekday)
        angle = 2 * np.pi * (times.hour + times.minute / 60) / 24
        np.testing.assert_allclose(columns[:, 9:], np.stack([np.sin(angle), np.cos(angle)], axis=1), atol=1e-6)
        place = np.arctan2(columns[:, 0], columns[:, 1]) / (2 * np.pi) % 1 * 365.2425
        distance = np.abs(place - (times.dayofyear - 1 + times.hour / 24))
        assert np.minimum(distance, 365.2425 - distance).max() < 2

    def test_stored_forms(self):
        columns = Columns.of(frame(), "from_dtype")
        again = Columns.from_plain(columns.to_plain())
        assert again.calendars == columns.calendars and again.calendars[1].parts == ("year", "week")
        old = Columns.from_plain(columns.to_plain()[:2])  # files from before dates
        assert old.calendars == [None, None]
        encoding = small().fit(frame(), Y)._learnt.table.encoding
        assert Encoding.from_plain(encoding.to_plain()).calendars == encoding.calendars
        assert Encoding.from_plain(encoding.to_plain()[:5]).calendars == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        small(),
        AVDGPRegressor((2,), **(SMALL | {"n_inducing": 4}), network_width=8, n_estimators=1),
        DSDGPRegressor((2,), **SMALL, n_estimators=2, ard=True),
    ],
    ids=["SOLVEGP", "AVDGP", "DSDGP"],
)
def test_a_date_is_a_feature(model):
    X = frame()
    model = clone(model).fit(X, Y)
    assert model.date_features_ == {"when": ["days", "year", "week"]} and model.is_categorical_ is None
    assert model.n_features_in_ == 2 and list(model.feature_names_in_) == ["size", "when"]
    expected = model.predict(X[:20])
    if model.ard:
        assert model.length_scales_[0].shape[-1] == 4  # two features, and then two parts of the date
    same_day = pd.DataFrame({"size": X["size"][:20], "when": [day.date() for day in DAYS[:20]]})
    assert np.array_equal(model.predict(same_day), expected)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(X[:20]), expected)
    gaps = X[:20].assign(when=pd.NaT)
    mean, std = model.predict(gaps, return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all()
    assert np.isfinite(model.sample_functions(2, random_state=0)(X[:5])).all()


def test_a_date_is_the_same_as_columns_made_by_hand():
    X, dates = frame(), days_of(DAYS.to_series())[1]
    calendar = Calendar.of("date", dates)
    by_hand = np.column_stack([X["size"], dates - dates[0], calendar.columns(dates - dates[0])])
    model = small(ard=False, kernel="rbf", normalize_X=False, max_iter=2)
    found = model.fit(X, Y).predict(X)
    np.testing.assert_allclose(found, clone(model).fit(by_hand, Y).predict(by_hand), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_slopes_are_per_day():
    X = frame()
    model = small(dtype="float64", base="auto").fit(X, np.linspace(0.0, 8.0, len(X)))
    slope = model.predict_gradient(X[300:310])
    assert slope.shape == (10, 2) and np.isfinite(slope).all()
    assert np.isnan(model.predict_gradient(X[300:302].assign(when=pd.NaT))[:, 1]).all()


@pytest.mark.slow
def test_missing_dates_categories_and_durations():
    X = frame().assign(
        city=np.where(np.arange(800) % 3, "Oslo", "Rome"), wait=pd.to_timedelta(np.arange(800) % 50, "h")
    )
    X.loc[::7, "when"] = pd.NaT
    model = small().fit(X, Y)
    assert model.date_features_ == {"when": ["days", "year", "week"], "wait": ["days"]}
    assert model.is_categorical_.tolist() == [False, False, True, False]
    assert np.isfinite(model.predict(X)).all()
    model.update(X[:5], Y[:5])


def test_text_of_dates_is_taken_for_dates_with_a_warning():
    X = frame(DAYS.strftime("%Y-%m-%d"))
    with pytest.warns(UserWarning, match="^Column 'when' of X is text that reads as dates, such as '2019-06-03'"):
        model = small().fit(X, Y)
    assert np.array_equal(model.predict(frame()), small().fit(frame(), Y).predict(frame()))
    with pytest.warns(UserWarning, match="^Column 'when' of X is a category with a level of its own"):
        assert small(categorical_features=["when"]).fit(X, Y).date_features_ is None
    with pytest.raises(
        ValueError, match=r"^Column 'when' of X held dates in fit, and now has dtype .* pass a data frame"
    ):
        model.predict(X.assign(when="soon"))


def test_clocks_of_another_time_zone_are_refused():
    """The hour of the day would be another one, without a word."""
    pl = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    X = pd.DataFrame({"when": pd.date_range("2024-05-01", periods=40, freq="5h", tz="Asia/Tokyo"), "size": range(40)})
    model = small(max_iter=2).fit(X, np.arange(40.0))
    expected = model.predict(X)
    forms = [X, pl.from_pandas(X), X.astype({"when": "timestamp[us, tz=Asia/Tokyo][pyarrow]"})]
    forms += [X.assign(when=X["when"].dt.tz_localize(None)), X.assign(when=X["when"].astype(object))]
    for form in forms:
        assert np.array_equal(model.predict(form), expected)
    utc = X.assign(when=X["when"].dt.tz_convert("UTC"))
    message = r"^Column 'when' of X had the time zone Asia/Tokyo in fit, and now has UTC.*tz_convert\('Asia/Tokyo'\)"
    for form in (utc, pl.from_pandas(utc), utc.astype({"when": "timestamp[us, tz=UTC][pyarrow]"})):
        with pytest.raises(ValueError, match=message):
            model.predict(form)
    assert np.array_equal(model.predict(utc.assign(when=utc["when"].dt.tz_convert("Asia/Tokyo"))), expected)
    again = Columns.from_plain(model._learnt.table.columns.to_plain())
    assert again.calendars == model._learnt.table.columns.calendars
    old = Calendar.from_plain(again.calendars[0].to_plain()[:3])  # of files from before time zones
    assert old == again.calendars[0]._replace(zone=None)


def test_differences_from_utc_are_time_zones():
    times = pd.Series(pd.to_datetime(["2024-05-01 10:00+01:00"]))
    assert zone_of(times) == zone_of(times.astype("timestamp[us, tz=+01:00][pyarrow]")) == "+01:00"
    assert zone_of(times.dt.tz_convert("UTC")) == zone_of(times.dt.tz_convert("Etc/UTC")) == "UTC"
    assert zone_of(times.dt.tz_localize(None)) is None


@pytest.mark.slow
def test_chunks_learn_with_the_calendar_of_the_first():
    model = DSDGPClassifier((2,), n_inducing=8, random_state=0, n_estimators=1)
    model.partial_fit(frame()[:400], Y[:400] > 0, classes=[False, True]).partial_fit(frame()[400:], Y[400:] > 0)
    assert model.date_features_ == {"when": ["days", "year", "week"]} and model.predict(frame()).shape == (800,)


def test_latent_display_refuses_dates():
    model = DSDGPRegressor((2,), **SMALL, n_estimators=1).fit(frame(), Y)
    with pytest.raises(ValueError, match="LatentDisplay varies numbers, but this model has dates or durations"):
        LatentDisplay.from_estimator(model, frame())
