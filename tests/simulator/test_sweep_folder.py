"""Sweeps on disk: saved and loaded, interrupted and continued, damaged and rejected."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.engines.simulator import sweep as sweeps
from nowait.recording.sweep_folder import SweepFolder

PROBLEM = nw.problems.LeastSquares.random(samples=80, dimension=5, noise=0.01, seed=0)
SPEEDS = nw.speeds.LogNormal([0.3, 1.0, 4.0], sigma=0.5)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(1.0))
CLIPPED = nw.ClippedASGD(nw.Constant(1.0), max_norm=0.5)
SIZES, SEEDS = [0.01, 0.1, 1e3], [0, 5]


def swept(method=METHOD, sizes=SIZES, seeds=SEEDS, **options):
    return nw.sweep(PROBLEM, method, SPEEDS, stepsizes=sizes, seeds=seeds, **({"steps": 120} | options))


def assert_same(first, second):
    for name in ("stepsizes", "seeds", "step", "gradients", "time", "diverged"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    np.testing.assert_allclose(first.curves, second.curves, rtol=1e-12)  # losses of several points round in another way
    assert (first.engine, first.config) == (second.engine, second.config)
    assert (first.answers is None) == (second.answers is None)
    if first.answers is not None:
        np.testing.assert_array_equal(first.answers, second.answers)


@pytest.fixture(autouse=True)
def quiet(caplog):
    return caplog


def test_a_sweep_is_loaded_as_it_was_saved(tmp_path):
    result = swept()
    assert result.diverged.any()
    assert_same(nw.Sweep.load(result.save(tmp_path / "sweep")), result)


def test_a_sweep_that_was_written_as_it_went_is_loaded_too(tmp_path):
    for number, options in enumerate(({}, {"method": CLIPPED}, {"output": nw.UniformAverage()})):
        result = swept(folder=tmp_path / str(number), **options)
        assert_same(nw.Sweep.load(tmp_path / str(number)), result)


@pytest.mark.parametrize(("method", "calls", "lines"), [(METHOD, 1, 3), (CLIPPED, 4, 4)], ids=["compiled", "reference"])
def test_an_interrupted_sweep_goes_on_where_it_was(method, calls, lines, tmp_path, monkeypatch):
    folder = tmp_path / "sweep"
    whole, original, added = swept(method), SweepFolder.add, []

    def add(self, runs, engine):
        original(self, runs, engine)
        added.append(runs)
        if len(added) == calls:
            raise KeyboardInterrupt

    monkeypatch.setattr(SweepFolder, "add", add)
    with pytest.raises(KeyboardInterrupt):
        swept(method, threads=1, folder=folder)
    monkeypatch.undo()
    before = (folder / "runs.jsonl").read_text()
    assert len(before.splitlines()) == lines
    missing = rf"{6 - lines} of the 6 runs of the sweep in .* are missing \(it was not finished\)"
    with pytest.raises(ValueError, match=missing):
        nw.Sweep.load(folder)
    result = swept(method, folder=folder)
    after = (folder / "runs.jsonl").read_text()
    assert after.startswith(before), "what was there is not made again"
    assert len(after.splitlines()) == 6
    assert_same(result, whole)
    swept(method, folder=folder)
    assert (folder / "runs.jsonl").read_text() == after, "nothing was missing"


def test_runs_cut_short_by_an_interruption_are_not_kept(tmp_path, monkeypatch):
    """Their later losses are infinite, as if they had diverged."""
    original, evaluated = sweeps.losses_at, []

    def losses_at(problem, points):
        evaluated.append(len(points))
        if len(evaluated) == 5:
            raise KeyboardInterrupt
        return original(problem, points)

    monkeypatch.setattr(sweeps, "losses_at", losses_at)
    with pytest.raises(KeyboardInterrupt):
        swept(seeds=range(20), threads=2, folder=tmp_path / "sweep")
    monkeypatch.undo()
    whole = swept(seeds=range(20))
    assert_same(swept(seeds=range(20), folder=tmp_path / "sweep"), whole)


def test_further_stepsizes_and_seeds_are_added(tmp_path):
    swept(sizes=[0.01, 0.1], seeds=[0], folder=tmp_path / "sweep")
    result = swept(folder=tmp_path / "sweep")
    np.testing.assert_allclose(result.curves, swept().curves, rtol=1e-9)
    assert len((tmp_path / "sweep" / "runs.jsonl").read_text().splitlines()) == 6
    assert swept(sizes=[0.1], folder=tmp_path / "sweep").curves.shape[:2] == (1, 2)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"method": nw.AsynchronousSGD(nw.Constant(1.0))}, "method"),
        ({"method": nw.AsynchronousSGD(nw.DelayAdaptive(1.0, cut=7))}, "method"),
        ({"steps": 121}, "budget"),
        ({"evaluate_every": 7}, "evaluations"),
        ({"update": nw.Momentum(0.5)}, "update"),
        ({"output": nw.UniformAverage()}, "output"),
        ({"faults": nw.speeds.Faults([(5.0, "leave", 1)])}, "faults"),
        ({"initial": np.ones(5)}, "initial_loss"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_folder_of_another_sweep_is_refused(other, name, tmp_path):
    swept(folder=tmp_path / "sweep")
    with pytest.raises(ValueError, match=f"contains a sweep with another {name}: choose another folder"):
        swept(**({"folder": tmp_path / "sweep"} | other))


def test_nothing_is_overwritten(tmp_path):
    result = swept()
    result.save(tmp_path / "sweep")
    with pytest.raises(FileExistsError, match="already contains a sweep, and nothing is overwritten"):
        result.save(tmp_path / "sweep")


def test_damage_is_never_believed(tmp_path, caplog):
    """With any byte changed, or the file truncated anywhere, loading raises an error and continuing repeats runs."""
    result = swept(folder=tmp_path / "sweep")
    random = np.random.default_rng(0)
    for name, why in (("sweep.json", "is damaged"), ("runs.jsonl", "are missing")):
        path = tmp_path / "sweep" / name
        whole = path.read_bytes()
        for place in random.integers(0, len(whole) - 1, 60).tolist():
            bits = int(random.integers(1, 256))
            for damaged in (whole[:place] + bytes([whole[place] ^ bits]) + whole[place + 1 :], whole[:place]):
                path.write_bytes(damaged)
                with pytest.raises(ValueError, match=why) as refusal:
                    nw.Sweep.load(tmp_path / "sweep")
                assert "\n" not in str(refusal.value)
        path.write_bytes(whole)
    lines = (tmp_path / "sweep" / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "sweep" / "runs.jsonl").write_text(lines[0] + lines[1].replace("0", "1") + "".join(lines[2:])[:-9])
    caplog.clear()
    assert_same(swept(folder=tmp_path / "sweep"), result)
    assert "line 2 of" in caplog.messages[0]
    assert "is damaged: this run will be repeated" in caplog.messages[0]
    assert_same(nw.Sweep.load(tmp_path / "sweep"), result)


def test_a_folder_without_a_sweep_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not the folder of a sweep: it has no sweep\.json"):
        nw.Sweep.load(tmp_path)


def test_a_file_of_runs_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "runs.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"runs\.jsonl"):
        swept(folder=tmp_path / "sweep")
    assert (tmp_path / "other").read_text() == "mine"


# Updates and outputs


@pytest.mark.parametrize(
    "rules",
    [
        {"update": nw.Momentum(0.5)},
        {"output": nw.UniformAverage()},
        {"update": nw.Momentum(0.5), "output": nw.UniformAverage()},
    ],
    ids="-".join,
)
def test_a_sweep_with_update_and_output_has_the_losses_of_single_runs(rules):
    result = swept(evaluate_every=20, **rules)
    for place, size in enumerate(SIZES):
        for number, seed in enumerate(SEEDS):
            method = nw.AsynchronousSGD(nw.DelayAdaptive(size))
            run = nw.simulate(PROBLEM, method, SPEEDS, steps=120, seed=seed, evaluate_every=20, **rules)
            assert result.diverged[place, number] == run.stats.diverged
            if run.stats.diverged:
                continue
            np.testing.assert_allclose(result.curves[place, number], run.history.loss)
            if "output" in rules:
                assert math.isclose(result.answers[place, number], PROBLEM.loss(run.params))
    assert (result.answers is None) == ("output" not in rules)


def test_with_an_output_rule_the_best_stepsize_has_the_best_answer():
    moments = np.tile([0.0, 1.0], (2, 1, 1))
    curves = np.array([[[1.0, 0.1]], [[1.0, 0.2]]])
    diverged = np.zeros((2, 1), bool)
    sizes, seeds = np.array([0.1, 1.0]), np.array([0])
    plain = nw.Sweep(sizes, seeds, curves, moments, moments, moments, diverged, "compiled")
    averaged = nw.Sweep(
        sizes, seeds, curves, moments, moments, moments, diverged, "compiled", np.array([[0.3], [0.05]])
    )
    assert (plain.best, averaged.best) == (0.1, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update": "momentum"}, "update must be a nowait Update"),
        ({"output": nw.UniformAverage}, "output must be an object, got the class UniformAverage"),
    ],
)
def test_wrong_rules_are_refused(options, message):
    with pytest.raises(TypeError, match=message):
        swept(**options)
