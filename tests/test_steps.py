"""Minibatches, parameters as one vector, and steps that are recorded."""

import pytest
import torch
from helpers import ELBO, Line, climb, generator, make_data, needs_gpu, predictor_of, settings
from torch import nn

from skdgp.inference import batches as batches_module
from skdgp.inference import graphs
from skdgp.inference.batches import Part, shuffled
from skdgp.inference.flat import FlatParameters
from skdgp.inference.graphs import RecordedStepper, can_be_recorded
from skdgp.inference.objectives import elbo
from skdgp.inference.settings import Member
from skdgp.inference.steps import Stepper


class TestShuffled:
    @pytest.mark.parametrize("together", [1, 7, 1000])
    def test_minibatches_do_not_depend_on_how_many_are_gathered_together(self, monkeypatch, together):
        data = make_data(23, noise=1.0)
        expected = [batch.y for batch in shuffled([Part(data)], 5, [generator()])]
        monkeypatch.setattr(batches_module, "GATHERED_ROWS", together)
        found = [batch.y for batch in shuffled([Part(data)], 5, [generator()])]
        assert [len(batch) for batch in found] == [4, 5, 4, 5, 5]
        assert all(map(torch.equal, found, expected))
        assert torch.equal(torch.cat(found).sort(dim=0).values, data.y.sort(dim=0).values)

    def test_rows_are_gathered_a_bounded_number_at_a_time(self, monkeypatch):
        monkeypatch.setattr(batches_module, "GATHERED_ROWS", 8)
        storages = {
            batch.X.untyped_storage().data_ptr(): batch.X.untyped_storage().nbytes()
            for batch in list(shuffled([Part(make_data(64))], 4, [generator()]))
        }
        assert len(storages) == 8
        assert set(storages.values()) == {8 * 8}


class TestFlatParameters:
    def test_parameters_are_views_until_released(self):
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        model[1].bias.requires_grad_(False)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        flat = FlatParameters([model])
        assert flat.vector.shape == (3 * 2 + 2 + 2,)
        assert all(map(torch.equal, before, model.parameters()))
        model(torch.ones(4, 3)).sum().backward()
        expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.requires_grad])
        assert torch.equal(flat.gradient, expected) and expected.abs().sum() > 0
        flat.vector.add_(1.0)
        flat.release()
        flat.vector.zero_()
        for was, now in zip(before[:3], list(model.parameters())[:3], strict=True):
            assert torch.equal(now, was + 1.0)
            assert now.grad is None
            assert now.untyped_storage().nbytes() == now.numel() * 4
        assert torch.equal(before[3], model[1].bias)


def plain_adam(model, data, rates, seed):
    """The same by an optimiser of every parameter."""
    optimizer, source = torch.optim.Adam(model.parameters()), generator(seed)
    for batch, rate in zip(data, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        (-elbo(model(batch.X, source), model.likelihood, batch.y, batch.weight, 0.0)).backward()
        optimizer.step()
    return model


def take_steps(make, device="cpu"):
    """A model after five steps of two sizes, three after it was put back, and the losses."""
    model, batches = Line(0.3, jiggle=0.5).to(device), [make_data(n, noise=1.0, seed=n) for n in (5, 6, 5, 6, 5)]
    batches = [batch.to(device, torch.float64) for batch in batches]
    stepper = make([Member(model, Part(batches[0]), generator(1, device))], settings(ELBO, beta=0.0))
    losses = [float(stepper.step(batch, 0.1 / (i + 1))) for i, batch in enumerate(batches[:2])]
    before = stepper.state()
    for batch in batches[2:]:
        stepper.step(batch, 0.7)
    stepper.restore(before)
    losses += [float(stepper.step(batch, 0.1 / (i + 3))) for i, batch in enumerate(batches[2:])]
    stepper.release()
    return model, losses, batches


class TestStepper:
    def test_steps_are_those_of_adam(self):
        model, _, batches = take_steps(Stepper)
        expected = plain_adam(Line(0.3, jiggle=0.5), batches, [0.1 / (i + 1) for i in range(5)], seed=1)
        torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-9)

    def test_a_loss_is_known_before_the_step(self):
        _, losses, batches = take_steps(Stepper)
        model = Line(0.3, jiggle=0.5)
        first = -elbo(model(batches[0].X, generator(1)), model.likelihood, batches[0].y, batches[0].weight, 0.0)
        assert losses[0] == pytest.approx(first.item(), rel=1e-9)
        assert len(set(losses)) == 5


class TestRecordedStepper:
    """Without a GPU all but the recording itself: memory of its own, rates, going back."""

    @pytest.fixture
    def replayed_by_calling(self, monkeypatch):
        calls = []

        def record(function, source):
            for _ in range(2):
                function()
            calls.append(function)
            return lambda: function().clone()

        monkeypatch.setattr(graphs, "record", record)
        return calls

    def test_steps_are_those_without_recording(self, replayed_by_calling):
        expected, expected_losses, _ = take_steps(Stepper)
        model, losses, _ = take_steps(RecordedStepper)
        assert len(replayed_by_calling) == 2  # two sizes of minibatches
        torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-9)
        assert losses == pytest.approx(expected_losses, rel=1e-6)

    def test_memory_of_a_recording_stays_where_it_is(self, replayed_by_calling):
        stepper = RecordedStepper([Member(Line(0.3), Part(make_data(5)), generator())], settings(ELBO))

        def addresses():
            fixed = [stepper.flat.vector, stepper.flat.sums, stepper.rate, *stepper.adam.memory]
            return [tensor.data_ptr() for tensor in fixed]

        before = addresses()
        stepper.step(make_data(5), 0.1)
        stepper.restore(stepper.state())
        stepper.step(make_data(5), 0.1)
        assert addresses() == before

    @needs_gpu
    def test_recorded_steps_are_those_without_recording(self):
        expected, expected_losses, _ = take_steps(Stepper, "cuda")
        model, losses, _ = take_steps(RecordedStepper, "cuda")
        torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-9)
        assert losses == pytest.approx(expected_losses, rel=1e-6)


def test_models_with_parts_of_others_are_not_recorded_unasked(tiny, wave):
    model = predictor_of(tiny().fit(*wave)).models[0]
    assert can_be_recorded(model)
    assert not can_be_recorded(nn.ModuleList([model, Line()]))


def test_a_stepper_shares_nothing_with_the_optimiser_of_another():
    models = [Line(0.0), Line(0.0)]
    steppers = [Stepper([Member(model, Part(make_data(4)), generator())], settings(climb)) for model in models]
    steppers[0].step(make_data(4), 0.1)
    assert models[0].slope.item() == pytest.approx(0.1, rel=1e-6)
    assert models[1].slope.item() == 0.0
