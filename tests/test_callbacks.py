"""Callbacks, and interruptions by the user."""

import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers import any_options
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import SOLVEGPRegressor
from skdgp.inference import collapsed
from skdgp.inference.processes import Processes, shared_among
from skdgp.inference.steps import Stepper
from skdgp.inference.validation import Validation

callback = pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on")


class Recorder:
    """Writes down what it is told, and stops tasks when ``stop(task name, number)`` says so."""

    max_propagation_depth = None

    def __init__(self, stop=lambda name, number: False):
        self.stop, self.told, self.depth = stop, [], []

    def setup(self, estimator, context):
        self.told.append("setup")

    def teardown(self, estimator, context):
        self.told.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.told.append(("begin", context.task_name, context.task_id))

    def on_fit_task_end(self, estimator, context):
        self.told.append(("end", context.task_name, context.task_id))
        return self.stop(context.task_name, context.task_id)


class Copier(Recorder):
    """Keeps the fitted copies that it is given."""

    def __init__(self):
        super().__init__()
        self.copies = []

    def on_fit_task_end(self, estimator, context, *, X, y, metadata, fitted_estimator):
        self.copies.append((context.task_name, fitted_estimator, fitted_estimator.score(X, y)))
        assert len(metadata["sample_weight"]) == len(X)


def by_minibatches(tiny, **schedule):
    """Without held-out rows; SOLVEGPRegressor would otherwise collapse the bound."""
    parameters = tiny().get_params()
    return tiny(early_stopping=False, **schedule, **({"method": "svi"} if "method" in parameters else {}))


def tasks(told, kind, name):
    return [number for entry in told if entry[0] == kind and entry[1] == name for number in entry[2:]]


class TestCallbacks:
    @any_options
    @pytest.mark.parametrize("early_stopping", [True, False])
    def test_every_epoch_is_a_task(self, tiny, wave, early_stopping):
        watch = Recorder()
        tiny(max_iter=3, early_stopping=early_stopping).set_callbacks(watch).fit(*wave)
        epochs = [(kind, "epoch", number) for number in range(3) for kind in ("begin", "end")]
        assert watch.told == ["setup", ("begin", "fit", 0), *epochs, ("end", "fit", 0), "teardown"]

    def test_members_share_their_epochs(self, tiny, wave):
        watch = Recorder()
        tiny(n_estimators=2, max_iter=2).set_callbacks(watch).fit(*wave)
        assert tasks(watch.told, "begin", "epoch") == tasks(watch.told, "end", "epoch") == [0, 1]

    def test_nothing_changes_by_watching(self, tiny, wave):
        X, y = wave
        assert np.array_equal(tiny().set_callbacks(Recorder()).fit(X, y).predict(X), tiny().fit(X, y).predict(X))

    def test_can_stop_training(self, tiny, wave):
        watch = Recorder(lambda name, number: name == "epoch" and number == 1)
        assert tiny(max_iter=9).set_callbacks(watch).fit(*wave).n_iter_ == 2

    def test_can_stop_the_ensemble(self, tiny, wave):
        watch = Recorder(lambda name, number: name == "epoch" and number == 1)
        model = tiny(n_estimators=4, max_iter=9).set_callbacks(watch).fit(*wave)
        assert len(model.module_) == 4 and model.n_iter_ == 2

    @pytest.mark.slow
    def test_collapsed_fits_tell_and_stop_too(self, wave):
        watch = Recorder(lambda name, number: number == 2)
        model = SOLVEGPRegressor(8, 8, max_iter=20, random_state=0).set_callbacks(watch).fit(*wave)
        assert model.method_ == "collapsed" and model.n_iter_ == 3 == len(tasks(watch.told, "end", "epoch"))

    @pytest.mark.parametrize("n_estimators", [1, 2])
    def test_fitted_copies_at_every_epoch(self, tiny, wave, n_estimators):
        X, y = wave
        watch = Copier()
        model = by_minibatches(tiny, n_estimators=n_estimators, max_iter=3).set_callbacks(watch).fit(X, y)
        epochs = [(each, score) for name, each, score in watch.copies if name == "epoch"]
        assert [(each.n_iter_, len(each.module_)) for each, _ in epochs] == [(n, n_estimators) for n in (1, 2, 3)]
        assert np.isfinite([score for _, score in epochs]).all()
        assert not np.array_equal(epochs[0][0].predict(X), epochs[1][0].predict(X))
        assert np.array_equal(epochs[-1][0].predict(X), model.predict(X))

    def test_fitted_copies_in_a_collapsed_fit(self, wave):
        """Training sets posteriors when it ends. Copies need their own before that."""
        X, y = wave
        watch, options = Copier(), {"n_estimators": 2, "base": None, "n_neighbors": 0, "random_state": 0}
        model = SOLVEGPRegressor(8, 8, max_iter=3, **options).set_callbacks(watch).fit(X, y)
        copies = [(each, score) for name, each, score in watch.copies if name == "epoch"]
        assert model.method_ == "collapsed" and [len(each.module_) for each, _ in copies] == 3 * [1] + 3 * [2]
        assert min(score for _, score in copies) > 0.5
        assert np.array_equal(copies[-1][0].predict(X), model.predict(X))

    @pytest.mark.slow
    def test_the_last_copy_is_what_held_out_rows_have_made_of_it(self, wave):
        X, y = wave
        watch = Copier()
        model = SOLVEGPRegressor(8, 8, max_iter=3, base="gp", random_state=0).set_callbacks(watch).fit(X, y)
        name, last, _ = watch.copies[-1]
        assert name == "fit" and last.base_weight_ == model.base_weight_ > 0
        assert np.array_equal(last.predict(X), model.predict(X))

    def test_fitted_copies_need_no_other_process(self, wave):
        """If only one of several processes asks for a copy, it must not wait for the others."""

        class Counted(Processes):
            n_calls = 0

            def add_up(self, numbers):
                self.n_calls += 1

        everyone = [Counted(), Counted()]
        for processes, watch in zip(everyone, (Recorder(), Copier()), strict=True):
            with shared_among(processes):
                SOLVEGPRegressor(8, 8, method="svi", max_iter=2, base=None).set_callbacks(watch).fit(*wave)
        assert everyone[0].n_calls == everyone[1].n_calls > 0

    def test_scoring_monitor(self, tiny, wave):
        monitor = callback.ScoringMonitor(scoring="r2")
        tiny(max_iter=3).set_callbacks(monitor).fit(*wave)
        log = monitor.get_logs()
        scores = [row for run in (log if isinstance(log, list) else [log]) for row in run.data]
        assert sum(row["task_name"] == "epoch" for row in scores) == 3

    def test_a_fit_without_hope_ends(self, tiny, wave):
        """The example of the documentation."""
        X, y = wave
        page = (Path(__file__).parents[1] / "doc/predictions.rst").read_text(encoding="utf-8")
        code = textwrap.dedent(page[page.index("    class Pruner") : page.index("    pruner = Pruner")])
        space: dict = {}
        exec(code, space)
        seen = []
        pruner = space["Pruner"](X, y, lambda score, epoch: seen.append((score, epoch)) or epoch >= 20)
        model = by_minibatches(tiny, max_iter=45).set_callbacks(pruner).fit(X, y)
        assert model.n_iter_ == 20 and [epoch for _, epoch in seen] == [10, 20]
        assert all(np.isfinite(score) for score, _ in seen)

    def test_are_torn_down_when_a_fit_fails(self, tiny, wave, monkeypatch):
        watch = Recorder()
        model = tiny().set_callbacks(watch)
        monkeypatch.setattr(Stepper, "epoch", lambda *args, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.fit(*wave)
        assert watch.told[-1] == "teardown"
        assert vars(model).keys() == vars(clone(model)).keys()  # nothing half-fitted stays

    @pytest.mark.slow
    @pytest.mark.parametrize("n_jobs", [1, 2])
    def test_progress_bar_reaches_through_searches_and_pipelines(self, tiny, wave, n_jobs, capsys):
        pytest.importorskip("rich")
        X, y = wave
        pipeline = make_pipeline(StandardScaler(), tiny())
        grid = {f"{pipeline.steps[1][0]}__learning_rate": [0.01, 0.05]}
        search = GridSearchCV(pipeline, grid, cv=2, n_jobs=n_jobs)
        search.set_callbacks(callback.ProgressBar(max_propagation_depth=None)).fit(X, y)
        shown = capsys.readouterr().out
        assert type(tiny()).__name__ in shown and "100%" in shown


class TestInterruption:
    """Ctrl-C raises KeyboardInterrupt wherever training is."""

    @pytest.fixture
    def interrupt(self, monkeypatch):
        def at_epoch(number):
            run, count = Stepper.epoch, iter(range(1, 100))

            def run_epoch(stepper, rate, **options):
                losses = run(stepper, rate, **options)
                if next(count) == number:
                    raise KeyboardInterrupt
                return losses

            monkeypatch.setattr(Stepper, "epoch", run_epoch)

        return at_epoch

    @pytest.mark.parametrize("epoch", [2, 3, 4])
    def test_leaves_the_whole_epochs_before(self, tiny, wave, interrupt, epoch):
        X, y = wave
        watch = Recorder(lambda name, number: number == epoch - 2)
        expected = by_minibatches(tiny, max_iter=4).set_callbacks(watch).fit(X, y)
        interrupt(epoch)
        with pytest.warns(UserWarning, match="was interrupted: .* fitted with the best parameters so far"):
            model = by_minibatches(tiny, max_iter=4).fit(X, y)
        assert model.n_iter_ == epoch - 1 == len(model.loss_curve_)
        assert np.array_equal(model.predict(X), expected.predict(X))

    def test_leaves_the_best_epoch_by_held_out_rows(self, tiny, wave, interrupt):
        interrupt(4)
        with pytest.warns(UserWarning, match="was interrupted"):
            model = tiny(max_iter=9).fit(*wave)
        assert model.best_iter_ == [1 + int(np.argmax(model.validation_scores_))]
        assert len(model.validation_scores_) == 3

    def test_in_a_callback_leaves_the_epochs_until_then(self, tiny, wave):
        def interrupt(name, number):
            if number == 1 and name == "epoch":
                raise KeyboardInterrupt

        told = Recorder(interrupt)
        with pytest.warns(UserWarning, match="was interrupted"):
            model = by_minibatches(tiny, max_iter=4).set_callbacks(told).fit(*wave)
        assert model.n_iter_ == 2 and np.isfinite(model.predict(wave[0])).all()

    def test_leaves_every_member(self, tiny, wave, interrupt):
        interrupt(3)
        with pytest.warns(UserWarning, match="3 of 3 members") as seen:
            model = tiny(max_iter=3, n_estimators=3).fit(*wave)
        assert seen[0].filename == __file__
        assert len(model.module_) == 3 and model.n_iter_ == 2
        model.predict(wave[0])

    def test_in_the_first_epoch_leaves_the_estimator_as_it_was(self, tiny, wave, interrupt):
        interrupt(1)
        model = tiny()
        with pytest.raises(KeyboardInterrupt):
            model.fit(*wave)
        assert not hasattr(model, "module_")

    @pytest.mark.slow
    def test_of_a_collapsed_fit(self, wave, monkeypatch):
        X, y = wave
        whole, count = collapsed.collapsed, iter(range(1, 1000))

        def bound(*args):
            if next(count) == 12:
                raise KeyboardInterrupt
            return whole(*args)

        monkeypatch.setattr(collapsed, "collapsed", bound)
        with pytest.warns(UserWarning, match="was interrupted") as seen:
            model = SOLVEGPRegressor(8, 8, max_iter=100, base=None, random_state=0).fit(X, y)
        assert seen[0].filename == __file__
        assert 1 < model.n_iter_ < 12 and model.score(X, y) > 0.3

    @pytest.mark.parametrize("decision", ["blend", "correction"])
    def test_after_training_keeps_the_members_and_what_is_decided(self, tiny, wave, monkeypatch, decision):
        def interrupt(*args, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(Validation, decision, interrupt)
        with pytest.warns(UserWarning, match="was interrupted: .* 2 of 2 members"):
            model = tiny(max_iter=3, n_estimators=2, base="gp", n_neighbors=4).fit(*wave)
        assert (model.base_weight_ == 0) == (decision == "blend") and model.neighbors_ is None
        assert len(model.module_) == 2 and np.isfinite(model.predict(wave[0], return_std=True)).all()

    def test_of_a_collapsed_fit_leaves_only_whole_members(self, wave, monkeypatch):
        """The second member has a kernel by then, but no posterior yet."""
        whole, count = collapsed.set_posteriors, iter(range(1, 100))

        def set_posteriors(*args, **options):
            if next(count) == 2:
                raise KeyboardInterrupt
            return whole(*args, **options)

        monkeypatch.setattr(collapsed, "set_posteriors", set_posteriors)
        model = SOLVEGPRegressor(8, 8, max_iter=5, n_estimators=2, base=None, n_neighbors=0, random_state=0)
        with pytest.warns(UserWarning, match="of 1 of 2 members"):
            model.fit(*wave)
        assert len(model.module_) == 1 and model.score(*wave) > 0.5
