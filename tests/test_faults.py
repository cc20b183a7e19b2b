"""What goes wrong during fit and predict ends in a model that works, or in an error that names the cure."""

import dis
import warnings
from pathlib import Path

import numpy as np
import pytest
import sklearn
import torch
from helpers import CLASSIFIERS, FAMILIES, any_options, every_family, name_of, targets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joblib import parallel_config
from sklearn.model_selection import cross_val_score

import skdgp
from skdgp.gp import linalg
from skdgp.gp.deep_gp import DeepGP


class TestTraining:
    @every_family
    def test_nan_in_a_gradient_costs_one_epoch_at_the_old_rate(self, tiny, wave, monkeypatch):
        X, y = wave[0], targets(tiny, wave[1])
        real, calls = DeepGP.forward, iter(range(10**6))

        def forward(self, X, *others, **options):
            marginals = real(self, X, *others, **options)
            if marginals.mean.requires_grad and next(calls) == 3:
                marginals.mean.register_hook(lambda gradient: gradient * torch.nan)
            return marginals

        monkeypatch.setattr(DeepGP, "forward", forward)
        model = tiny(max_iter=4).fit(X, y)
        assert model.n_iter_ == 4 and np.isfinite(model.loss_curve_).all()
        assert all(parameter.isfinite().all() for parameter in model.module_.parameters())

    @every_family
    def test_nan_in_every_gradient_is_an_error(self, tiny, wave, monkeypatch):
        X, y = wave[0], targets(tiny, wave[1])
        real = DeepGP.forward

        def forward(self, X, *others, **options):
            marginals = real(self, X, *others, **options)
            if marginals.mean.requires_grad:
                marginals.mean.register_hook(lambda gradient: gradient * torch.nan)
            return marginals

        monkeypatch.setattr(DeepGP, "forward", forward)
        model = tiny()
        with pytest.raises((FloatingPointError, np.linalg.LinAlgError), match=r"NaN.*lower learning_rate|: lower it"):
            model.fit(X, y)
        assert not hasattr(model, "module_")

    @pytest.mark.filterwarnings("ignore:The (evidence of some rows|best posterior) could not be computed")
    @pytest.mark.parametrize("tiny", [each for each in FAMILIES if "AVDGP" not in name_of(each)], ids=name_of)
    def test_factorisation_that_fails_forever_is_an_error(self, tiny, wave, monkeypatch):
        X, y = wave[0], targets(tiny, wave[1])

        def never(K):
            return torch.zeros_like(K), torch.ones(K.shape[:-2], dtype=torch.int32)

        model = tiny().fit(X, y)
        expected = model.predict(X)
        monkeypatch.setattr(linalg.torch.linalg, "cholesky_ex", never)
        with pytest.raises(np.linalg.LinAlgError, match=r"not positive definite.* use fewer inducing points"):
            model.fit(X, y)
        monkeypatch.undo()
        assert np.array_equal(model.predict(X), expected)  # what was fitted before is there still

    @pytest.mark.parametrize("tiny", CLASSIFIERS, ids=name_of)
    def test_held_out_rows_of_one_class(self, tiny, wave):
        X, y = wave
        labels = np.where(np.arange(len(y)) < 3, "rare", "common")
        model = tiny(early_stopping=True, validation_fraction=0.05).fit(X, labels)
        assert np.isfinite(model.validation_scores_).all() and set(model.classes_) == {"rare", "common"}
        only = labels == "common"
        again = tiny().fit(X, labels, X_val=X[only][:20], y_val=labels[only][:20])
        assert np.isfinite(again.validation_scores_).all()

    @any_options
    @every_family
    def test_of_fewer_than_twenty_rows_none_is_held_out(self, tiny, wave):
        X, y = wave[0], targets(tiny, wave[1])
        few = tiny(early_stopping=True).fit(X[:19], y[:19])
        assert len(few.validation_scores_) == 0 and few.n_iter_ == few.max_iter
        assert len(tiny(early_stopping=True).fit(X[:20], y[:20]).validation_scores_) > 0


class TestPrediction:
    @every_family
    def test_out_of_memory_halves_the_batch(self, tiny, wave, monkeypatch):
        """Whether the model runs out of it, or what is made of its marginals."""
        X, y = wave[0], targets(tiny, wave[1])
        model = tiny().fit(X, y)
        expected, sizes, forward = model.predict(X), [], DeepGP.forward

        def small(self, X, generator=None):
            sizes.append(len(X))
            if len(X) > 20:
                raise torch.OutOfMemoryError("simulated")
            return forward(self, X, generator)

        monkeypatch.setattr(DeepGP, "forward", small)
        found = model.predict(X)
        assert np.array_equal(found, expected) if tiny in CLASSIFIERS else np.allclose(found, expected, rtol=1e-9)
        assert sizes[0] == 120 and sum(size for size in sizes if size <= 20) == 120 * len(model.module_)

        def none(self, X, generator=None):
            raise torch.OutOfMemoryError("simulated")

        monkeypatch.setattr(DeepGP, "forward", none)
        with pytest.raises(torch.OutOfMemoryError):
            model.predict(X)

    @pytest.mark.parametrize("tiny", CLASSIFIERS, ids=name_of)
    def test_out_of_memory_in_the_likelihood_halves_the_batch(self, tiny, wave, monkeypatch):
        X, y = wave[0], targets(tiny, wave[1])
        model = tiny().fit(X, y)
        expected = model.predict_proba(X)
        kind = type(model.module_[0].likelihood)
        real = kind.log_probabilities

        def small(self, mean, variance):
            if mean.shape[1] > 20:
                raise torch.OutOfMemoryError("simulated")
            return real(self, mean, variance)

        monkeypatch.setattr(kind, "log_probabilities", small)
        np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-9)


class TestParallel:
    @pytest.mark.slow
    @pytest.mark.parametrize("backend", ["loky", "threading"])
    def test_jobs_do_not_change_numbers(self, tiny, wave, backend):
        X, y = wave
        alone = cross_val_score(tiny(), X, y, cv=4)
        with parallel_config(backend):
            together = cross_val_score(tiny(), X, y, cv=4, n_jobs=4)
        np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-9)  # fewer threads sum in another order


#: What tables in the wild have.
SCALES = st.sampled_from([1e-30, 1e-12, 1e-3, 1.0, 1e3, 1e12, 1e30])
COLUMNS = st.sampled_from(["normal", "normal", "normal", "constant", "integers", "binary", "duplicate", "heavy"])
FLAWS = st.sampled_from([None] * 6 + ["inf", "nan", "object", "strings", "float16", "bool", "huge", "list"])


def make_column(kind, n_rows, scale, rng):
    column = {
        "normal": rng.standard_normal(n_rows),
        "constant": np.ones(n_rows),
        "integers": rng.integers(-3, 4, n_rows).astype(float),
        "binary": rng.integers(0, 2, n_rows).astype(float),
        "duplicate": np.repeat(rng.standard_normal(n_rows), 2)[:n_rows],
        "heavy": rng.standard_cauchy(n_rows),
    }[kind]
    return scale * column


def spoil(table, flaw, rng):
    """The table with something in it that a user may not have noticed."""
    if flaw in ("inf", "nan"):
        table[rng.integers(len(table)), rng.integers(table.shape[1])] = float(flaw)
    if flaw == "object":
        return table.astype(object)
    if flaw == "strings":
        return np.where(table > 0, "high", "low")
    if flaw == "float16":
        with np.errstate(over="ignore"):
            return table.astype(np.float16)
    if flaw == "bool":
        return table > 0
    if flaw == "huge":
        table[0, 0] = np.finfo(table.dtype).max
    return table.tolist() if flaw == "list" else table


def assert_raised_on_purpose(error):
    """By a statement ``raise`` of this package or of scikit-learn, not by a shape or a number that nobody expected.

    NumPy may refuse cells that are no numbers, while scikit-learn converts them.
    """
    traceback = error.__traceback__
    while traceback.tb_next:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    instruction = dis.opname[code.co_code[traceback.tb_lasti]]
    ours, sklearns = (Path(code.co_filename).is_relative_to(Path(each.__file__).parent) for each in (skdgp, sklearn))
    assert sklearns or (ours and instruction == "RAISE_VARARGS"), f"{code.co_filename}:{traceback.tb_lineno}: {error!r}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(len(FAMILIES)), ids=[name_of(tiny) for tiny in FAMILIES])
@settings(max_examples=170, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(
    n_rows=st.integers(1, 40),
    columns=st.lists(st.tuples(COLUMNS, SCALES), min_size=1, max_size=4),
    target=st.tuples(COLUMNS, SCALES),
    n_outputs=st.sampled_from([None, None, 1, 2]),
    flaw=FLAWS,
    dtype=st.sampled_from([np.float64, np.float64, np.float32]),
    seed=st.integers(0, 2**16),
)
def test_any_small_table_gives_finite_predictions_or_our_error(
    part, n_rows, columns, target, n_outputs, flaw, dtype, seed
):
    rng = np.random.default_rng(seed)
    tiny = FAMILIES[part]
    with np.errstate(over="ignore"):
        X = np.column_stack([make_column(*column[:1], n_rows, column[1], rng) for column in columns]).astype(dtype)
    y = np.column_stack([make_column(target[0], n_rows, target[1], rng) for _ in range(n_outputs or 1)])
    y = y if n_outputs else y[:, 0]
    if tiny in CLASSIFIERS:
        y = np.digitize(y if n_outputs is None else y[:, 0], [-0.5 * target[1], 0.5 * target[1]])
    X = spoil(X, flaw, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = tiny(max_iter=2).fit(X, y)
            found = [model.predict_proba(X)] if tiny in CLASSIFIERS else model.predict(X, return_std=True)
        except (ValueError, TypeError) as error:
            assert_raised_on_purpose(error)
            return
    assert all(np.isfinite(values).all() and len(values) == n_rows for values in found)


@pytest.mark.parametrize(
    "y", [[0.5, 1.0, None, 2.0], [0.5, 1.0, np.nan, np.nan], np.array([1, 2, np.nan, 3], dtype=object)]
)
def test_missing_targets_are_named_with_the_cure(y):
    """scikit-learn says neither where they are nor what to do."""
    with pytest.raises(
        ValueError, match=r"Input y contains NaN\. The first of \d such rows is row 2: leave out rows"
    ) as found:
        skdgp.SOLVEGPRegressor().fit(np.eye(4), y)
    assert "bounds" in str(found.value)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_infinite_targets_are_named_with_the_cure(scale):
    """With n_latent_outputs too, where gaps are no fault."""
    y = scale * np.ones((4, 2))
    y[0, 0], y[3, 1] = np.nan, np.inf
    with pytest.raises(
        ValueError, match=r"Input y contains infinity .*\. The first of 1 such rows is row 3: leave out"
    ):
        skdgp.SOLVEGPRegressor(n_latent_outputs=1).fit(np.eye(4), y)
    with pytest.raises(ValueError, match=r"Input y contains NaN\. The first of 2 such rows is row 0: leave out"):
        skdgp.SOLVEGPRegressor().fit(np.eye(4), y)


def test_missing_labels_that_are_numbers_are_named_with_the_cure():
    with pytest.raises(ValueError, match=r"Input y contains NaN\. The first of 1 such rows is row 1: leave out rows"):
        skdgp.SOLVEGPClassifier().fit(np.eye(4), np.array([0.0, np.nan, 1.0, 1.0]))
