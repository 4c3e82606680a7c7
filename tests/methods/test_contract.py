"""Every method of the catalogue passes the contract suite."""

import numpy as np
import pytest

import nowait.methods
from nowait.pytorch import TorchMemory
from nowait.testing import CATALOGUE, METHOD_CHECKS, contract


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CATALOGUE)
def test_the_contract(name, check):
    check(CATALOGUE[name])


def test_a_method_whose_steps_depend_on_the_memory_fails():
    class HalfStepsOfTensors(nowait.Method):
        stepsize = nowait.Constant(0.1)

        def on_arrival(self, server, arrival):
            server.apply(arrival, 0.1 if isinstance(server.params, np.ndarray) else 0.05)
            server.assign(arrival.worker)

    with pytest.raises(AssertionError, match=r"the trace has another .* than in host memory"):
        contract.runs_in_this_memory_are_those_of_host_memory(HalfStepsOfTensors(), TorchMemory("cpu"))
    assert failing(HalfStepsOfTensors()) == ["runs_in_this_memory_are_those_of_host_memory_with_tensors"]


def failing(method):
    """The names of the checks that a method fails."""
    names = []
    for check in METHOD_CHECKS:
        try:
            check(method)
        except AssertionError:
            names.append(check.__name__)
    return names


class TableOfGradients(nowait.Method):
    """Steps along the mean of the latest gradients of all workers, which it keeps with ``kept``."""

    stepsize = nowait.Constant(0.1)

    def __init__(self, kept):
        self.kept = kept

    def start(self, server):
        self.table = {}
        super().start(server)

    def on_arrival(self, server, arrival):
        gradient = self.kept(arrival.gradient)
        server.apply(arrival, 0.1, sum([gradient, *self.table.values()]) / (1 + len(self.table)))
        self.table[arrival.worker] = gradient
        server.assign(arrival.worker)


def test_a_method_that_keeps_gradients_without_a_copy_fails():
    assert failing(TableOfGradients(lambda gradient: gradient)) != []
    with pytest.raises(AssertionError, match="because a gradient or point was overwritten after its on_arrival: keep"):
        contract.gradients_and_points_are_not_kept(TableOfGradients(lambda gradient: gradient))
    contract.gradients_and_points_are_not_kept(TableOfGradients(lambda gradient: gradient.copy()))


def test_a_method_that_keeps_points_without_a_copy_fails():
    class Anchored(nowait.Method):
        """Every step goes a little towards the point of the gradient before."""

        def start(self, server):
            self.anchor = None
            super().start(server)

        def on_arrival(self, server, arrival):
            pull = 0.0 if self.anchor is None else server.params - self.anchor
            server.apply(arrival, 0.1, arrival.gradient + 0.01 * pull)
            self.anchor = arrival.point
            server.assign(arrival.worker)

    with pytest.raises(AssertionError, match="because a gradient or point was overwritten after its on_arrival: keep"):
        contract.gradients_and_points_are_not_kept(Anchored())


def test_a_method_that_raises_because_a_point_was_overwritten_is_told_the_cause():
    class Slower(nowait.Method):
        """Steps are shorter the further the point before is from 0."""

        def start(self, server):
            self.before = None
            super().start(server)

        def on_arrival(self, server, arrival):
            far = 0.0 if self.before is None else float(abs(self.before).sum())
            server.apply(arrival, 0.1 / (1 + far))
            self.before = arrival.point
            server.assign(arrival.worker)

    with pytest.raises(AssertionError, match=r"got nan\) because a gradient or point was overwritten after its on_arr"):
        contract.gradients_and_points_are_not_kept(Slower())


class SumsOfWorkers(nowait.Method):
    """Steps along the sum of the latest gradients of all workers; ``early`` empties a sum before its gradient."""

    stepsize = nowait.Constant(0.1)

    def __init__(self, early):
        self.early = early

    def start(self, server):
        self.sums = {}
        super().start(server)

    def on_arrival(self, server, arrival):
        if self.early:
            entry = self.sums.setdefault(arrival.worker, server.sum())
            entry.clear()
        else:
            entry = server.sum()
        entry.add(arrival)
        self.sums[arrival.worker] = entry
        total = server.sum()
        for other in self.sums.values():
            total.merge(other)
        server.step(total, 0.1, 1 / len(self.sums))
        server.assign(arrival.worker)


def test_a_method_that_changes_its_state_before_its_first_verb_fails():
    with pytest.raises(
        AssertionError, match=r"a NaN at event \d+, with another worker's gradient before its repetition"
    ):
        contract.a_bad_gradient_is_as_if_it_never_came(SumsOfWorkers(early=True))
    contract.a_bad_gradient_is_as_if_it_never_came(SumsOfWorkers(early=False))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((3, nowait.Sgd()), "returned 3 instead of a method"),
        ((nowait.MinibatchSGD(0.1), 0.9), "returned 0.9 instead of an update"),
        ((nowait.Auto(0.1), nowait.Sgd()), "Auto is tuned as yet another method"),
        ((nowait.OrderedMomentum(0.1), nowait.Nesterov(0.9)), "OrderedMomentum makes its own update"),
    ],
)
def test_a_method_that_names_a_wrong_one_to_tune_fails(answer, words):
    class Own(nowait.Method):
        def on_arrival(self, server, arrival):
            server.assign(arrival.worker)

        def tuned_as(self, update):
            return answer

    with pytest.raises(AssertionError, match=words):
        contract.it_is_tuned_as_a_method(Own())


def test_the_catalogue_has_every_method():
    exported = {name for name in nowait.methods.__all__ if issubclass(getattr(nowait.methods, name), nowait.Method)}
    assert {type(method).__name__ for method in CATALOGUE.values()} == exported


def test_a_method_of_the_catalogue_that_is_not_compiled_fails(monkeypatch):
    monkeypatch.setattr(contract, "NOT_COMPILED", ())
    with pytest.raises(AssertionError, match="the run was not compiled: the method reads gradients"):
        contract.compiled_runs_are_the_reference_runs(CATALOGUE["ClippedASGD"])


def test_a_method_that_is_compiled_must_not_be_listed_as_not_compiled(monkeypatch):
    monkeypatch.setattr(contract, "NOT_COMPILED", (nowait.methods.FedBuff,))
    with pytest.raises(AssertionError, match="remove the method from NOT_COMPILED"):
        contract.compiled_runs_are_the_reference_runs(CATALOGUE["FedBuff"])


def test_a_method_of_a_user_may_read_gradients_but_not_the_inside_of_the_server():
    class Own(nowait.Method):
        stepsize = nowait.Constant(0.05)

        def __init__(self, read):
            self.read = read

        def on_arrival(self, server, arrival):
            self.read(server, arrival)
            server.apply(arrival, 0.05)
            server.assign(arrival.worker)

    contract.compiled_runs_are_the_reference_runs(Own(lambda server, arrival: arrival.gradient))
    with pytest.raises(AssertionError, match="the method raised AttributeError"):
        contract.compiled_runs_are_the_reference_runs(Own(lambda server, arrival: server._versions))


class NotesEverything(nowait.Method):
    """Asynchronous SGD that notes first at every call."""

    stepsize = nowait.Constant(0.1)

    def start(self, server):
        server.note("start", {})
        super().start(server)

    def on_arrival(self, server, arrival):
        server.note("arrival", {"worker": arrival.worker, "delay": arrival.delay})
        server.apply(arrival, 0.1)
        server.assign(arrival.worker)

    def on_join(self, server, worker):
        server.note("join", {"worker": worker})
        super().on_join(server, worker)

    def on_leave(self, server, worker):
        server.note("leave", {"worker": worker})


def test_a_method_may_note_at_every_event():
    assert failing(NotesEverything()) == []


def test_notes_that_depend_on_more_than_the_run_fail():
    class NotesCalls(NotesEverything):
        calls = 0

        def on_arrival(self, server, arrival):
            NotesCalls.calls += 1
            server.note("calls", {"number": NotesCalls.calls})
            super().on_arrival(server, arrival)

    with pytest.raises(ValueError, match=r"note 1 of the trace is 'calls' .* in the replay 'calls'"):
        contract.a_replay_is_the_run(NotesCalls())
    with pytest.raises(AssertionError, match="the plan has other notes"):
        contract.compiled_runs_are_the_reference_runs(NotesCalls())


class Shrinking(nowait.Method):
    """Its steps get shorter. ``resume`` continues with what the object has: a resumed run, with that of another run."""

    def start(self, server):
        self.stepsize = 0.1
        super().start(server)

    def resume(self, server, state):
        super().start(server)

    def on_arrival(self, server, arrival):
        server.apply(arrival, self.stepsize)
        self.stepsize *= 0.9
        server.assign(arrival.worker)


def test_a_resume_that_uses_what_the_object_had_before_fails():
    with pytest.raises(AssertionError, match="resumed after 1 events is not its replay: resume must initialise"):
        contract.a_resumed_run_is_its_replay(Shrinking())


def test_state_that_a_checkpoint_cannot_store_is_refused():
    class Keeps(NotesEverything):
        def state(self):
            return {"table": {0: 1.0}}

    server = nowait.testing.a_server(Keeps(), num_workers=1)
    with pytest.raises(TypeError, match=r"Keeps.state\(\) has table=\{0: 1.0\}, which a checkpoint cannot store"):
        server.state()
