"""What waiting costs a recorded job: by hand, against simulations, on the command line."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import fdtrc
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app
from nowait.speeds import Recorded
from nowait.speeds.worker_times import WorkerTimes
from nowait.studies.record_checks import chance
from nowait.studies.sources import Source
from nowait.studies.whatif import steps_of

RUNNER = CliRunner()
STRAGGLER = Recorded.of([[1.0, 1.0], [1.0, 1.0], [10.0, 10.0]])
TEN_STEPS = Recorded.of([[1.0] * 10, [1.0] * 10, [10.0] * 10])
EQUAL = Recorded.of([[1.0] * 10] * 4)
IN_TURN = Recorded.of([[1.0, 1.05] * 10, [1.05, 1.0] * 10])
"""Equal workers, of which each is the slower one in every second step."""
PROBLEM = nw.problems.NoisyQuadratic(dimension=2)


def by_name(found):
    return {one.name: one for one in found.alternatives}


def test_the_savings_of_a_straggler_are_those_computed_by_hand():
    found = nw.whatif(STRAGGLER)
    ways = by_name(found)
    assert ways["synchronous, waiting for all"].seconds == 20.0
    assert ways["without its slowest worker"].seconds == pytest.approx(6 / 2 * 1.0)
    assert ways["the first 2 of 3, rest cancelled"].seconds == pytest.approx(6 / 2 * 1.0)
    assert found.asynchronous.seconds == pytest.approx(6 / 2.1)
    assert found.asynchronous.saved == pytest.approx(1 - 6 / 2.1 / 20)
    assert found.waiting == pytest.approx(1 - 4 / 10)
    assert found.speedup.speedup == nw.theory.speedup([1, 1, 10]).speedup


def test_it_says_when_asynchrony_is_not_worth_it():
    found = nw.whatif(IN_TURN)
    assert found.worth_it is False
    assert found.asynchronous.saved == pytest.approx(1 - 1.025 / 1.05)
    assert "Not worth it: asynchrony would save 2 % of the time (2 to 2 %)" in str(found)
    assert "too little to change anything" in found.for_a_manager
    assert nw.whatif(TEN_STEPS).worth_it
    assert "Worth a try: asynchrony would save 86 % of the time" in str(nw.whatif(TEN_STEPS))


def as_logged_by_synchronous_steps(job, jitter):
    """Return a job in which every worker logs the time of the whole step, with some jitter."""
    table = steps_of(job.times).table
    noise = np.random.default_rng(0).exponential(jitter, table.shape)
    return Recorded.of((table.max(axis=1, keepdims=True) * (1 + noise)).T)


@pytest.mark.parametrize("jitter", [1e-6, 0.005, 0.03])
def test_times_that_contain_the_waiting_allow_no_verdict(jitter):
    found = nw.whatif(as_logged_by_synchronous_steps(nw.speeds.alibaba(4), jitter))
    assert found.worth_it is None
    assert "%, so they probably contain the waiting for the slowest worker" in found.doubt
    assert "Record how long each worker computes its own gradient, without communication" in found.verdict
    assert "sooner asynchronously" not in str(found)
    assert "Workers wait" not in str(found)
    assert found.for_a_manager.endswith("does not show how long the machines of this job wait for each other.")
    assert found.as_dictionary()["doubt"] == found.doubt


def test_times_without_any_difference_allow_no_verdict():
    assert "within a step the workers' times differ by only 0 %" in nw.whatif(EQUAL).doubt


def test_independent_times_of_equal_workers_are_not_taken_for_waiting():
    times = 1 + 0.03 * np.random.default_rng(0).standard_normal((8, 200))
    found = nw.whatif(Recorded.of(times))
    assert (found.doubt, found.worth_it) == ("", False)


def job_with_names(names, **further):
    times = np.random.default_rng(0).lognormal(0.0, 0.3, (len(names), 50))
    return Recorded(replace(WorkerTimes.of(times, "a job", names=names), **further))


@pytest.mark.parametrize(
    ("names", "world_size", "words"),
    [
        (["0", "1"], 128, "lacks 126 of 128 workers (2 to 127), and the slowest of a step may be one"),
        (["0", "3", "7"], None, "lacks 5 of 8 workers (1 to 2, 4 to 6)"),
        (["0", "3", "7"], None, "Record all of them, or pass world_size=3 (--world-size) if these are all"),
        (["1", "2"], 3, "lacks 1 of 3 workers (0)"),
        (["a", "b"], 3, "lacks 1 of 3 workers, and"),
        (["0", "3", "7"], 3, ""),
        (["a", "b"], None, ""),
        (["1", "2"], None, ""),
    ],
)
def test_missing_workers_are_named_and_allow_no_verdict(names, world_size, words):
    found = nw.whatif(job_with_names(names, world_size=world_size))
    assert words in found.doubt
    assert bool(found.doubt) is bool(words)
    assert (found.worth_it is None) is bool(words)


def test_the_record_of_an_asynchronous_run_is_refused():
    speeds = nw.speeds.Fixed([1.0, 1.0, 5.0])
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(0.1)), speeds, steps=60)
    with pytest.raises(ValueError, match=r"gradients of the recorded run were late .* so its workers did not all wait"):
        nw.whatif(Recorded(run.trace))
    waiting = nw.simulate(PROBLEM, nw.MinibatchSGD(nw.Constant(0.1)), speeds, steps=20)
    assert nw.whatif(Recorded(waiting.trace)).worth_it


def test_steps_that_only_some_workers_have_do_not_say_who_is_slow():
    """Worker a was recorded in a slow phase of the whole job only: b is slower in the same steps."""
    noise = np.random.default_rng(0).lognormal(0.0, 0.05, (2, 100))
    slow, fast = np.full(50, 10.0), np.full(50, 1.0)
    a, b = slow * noise[0, :50], np.concatenate([1.5 * slow, fast]) * noise[1]
    times = WorkerTimes.of([a, b], "a job", names=["a", "b"])
    found = nw.whatif(Recorded(replace(times, steps=np.concatenate([np.arange(50), np.arange(100)]))))
    assert found.slowest == "b"
    assert found.speedup.speedup == pytest.approx(1.25, rel=0.02)
    assert "worker b is the slowest" in " ".join(str(found).split())


def test_no_worker_is_called_slow_for_differences_by_chance():
    equal = np.random.default_rng(0).lognormal(0.0, 0.5, (8, 400))
    found = nw.whatif(Recorded.of(equal))
    assert found.chance > 0.01
    assert "is the slowest" not in str(found)
    assert "no worker is slower than the others by more than chance" in " ".join(str(found).split())
    slow = equal * np.array([[1.0]] * 7 + [[1.5]])
    assert nw.whatif(Recorded.of(slow)).has_slowest
    assert "worker 7 is the slowest" in " ".join(str(nw.whatif(Recorded.of(slow))).split())
    assert nw.whatif(Recorded.of(equal[:, :1])).chance is None


def test_the_chance_of_equal_workers_is_that_of_the_f_test():
    from scipy.stats import f_oneway

    one_step_each = np.array([[1.0, 2.0], [3.0, 3.5], [1.2, 1.9]])
    centred = one_step_each - one_step_each.mean(axis=1, keepdims=True) + 2.0
    by_columns = f_oneway(*centred.T).statistic * (2 / 4)  # the means of the rows cost two degrees of freedom
    assert chance(np.repeat(one_step_each, 3, axis=0)) == pytest.approx(fdtrc(1, 2, by_columns), rel=1e-2)


def test_chance_is_small_with_its_own_probability():
    """Equal workers get a chance below 1 % in about 1 % of records, also if times have heavy tails and phases."""
    generator = np.random.default_rng(0)
    tables = generator.lognormal(0.0, 1.0, (400, 100, 6)) + np.repeat(generator.exponential(1.0, (400, 20, 6)), 5, 1)
    assert sum(chance(table) < 0.01 for table in tables) <= 10


def test_waiting_that_varies_from_step_to_step_is_said_to_depend_on_the_data():
    words = "The waiting varies from step to step, not from worker to worker"
    assert words in " ".join(nw.whatif(Recorded.of(np.random.default_rng(0).lognormal(0, 0.5, (8, 400)))).sentences)
    assert words not in " ".join(nw.whatif(TEN_STEPS).sentences)
    assert words not in " ".join(nw.whatif(nw.speeds.alibaba(1)).sentences)


def test_one_long_time_in_a_record_gives_no_verdict():
    seconds = np.ones((10, 20))
    seconds[3, 7] = 100.0
    found = nw.whatif(Recorded.of(seconds.tolist()))
    assert found.asynchronous.low < 0.1
    assert found.worth_it is None
    assert found.as_dictionary()["worth_it"] is None
    cannot_tell = "but the record is too short, or too irregular, to tell"
    assert found.verdict.startswith("No verdict: asynchrony would save 82 % of the time (0 to ")
    assert found.verdict.endswith(f", {cannot_tell}.")
    assert found.for_a_manager.endswith(f"waiting for the slowest one, {cannot_tell} what a change would save.")


@pytest.mark.parametrize(("steps", "worth_it"), [(1, None), (9, None), (10, True)])
def test_a_record_of_few_steps_gives_no_verdict(steps, worth_it):
    found = nw.whatif(Recorded.of([[1.0] * steps, [1.0] * steps, [10.0] * steps]))
    assert found.worth_it is worth_it
    assert ("Worth a try" in str(found)) is (worth_it is True)
    assert ("Without asynchrony, 'without" in str(found)) is (worth_it is True)
    is_short = "a record of fewer than 10 steps is too short to tell"
    assert (is_short in found.verdict, is_short in found.for_a_manager) == (worth_it is None, worth_it is None)


@pytest.mark.parametrize(
    ("job", "formula", "worth_it"), [(1, "1.07", False), (2, "1.13", True), (3, "1.07", False), (4, "3.26", True)]
)
def test_the_four_jobs_of_alibaba(job, formula, worth_it):
    found = nw.whatif(nw.speeds.alibaba(job))
    assert found.worth_it is worth_it
    assert f"s_max/HM = {formula} " in str(found)
    assert found.asynchronous.low < found.asynchronous.saved < found.asynchronous.high
    assert max(map(len, str(found).splitlines())) <= 80


def test_the_times_agree_with_simulations_of_the_methods():
    recorded = nw.speeds.alibaba(4)
    found = nw.whatif(recorded)
    rest = Recorded.of([recorded.seconds[worker] for worker in (1, 2, 3, 4, 9)])
    methods = {
        "synchronous, waiting for all": (nw.MinibatchSGD(1e-9), recorded),
        "without its 5 slowest workers": (nw.MinibatchSGD(1e-9), rest),
        "the first 5 of 10, rest cancelled": (nw.MSynchronousSGD(1e-9, m=5, cancel=True), recorded),
        "asynchronous": (nw.AsynchronousSGD(1e-9), recorded),
    }
    gradients = 10 * found.steps
    for name, (method, speeds) in methods.items():
        run = nw.simulate(PROBLEM, method, speeds, gradients=gradients, evaluate_every=10**9, progress=False)
        assert by_name(found)[name].seconds == pytest.approx(run.stats.seconds, rel=0.03), name


def test_only_steps_with_times_of_all_workers_count(tmp_path):
    path = tmp_path / "job.csv"
    path.write_text("worker,seconds,step\n0,1,5\n0,2,6\n1,9,6\n1,3,7\n")
    found = nw.whatif(Recorded.read(path))
    assert found.synchronous.seconds == 9.0
    assert "Of 3 steps, 1 have times of all workers" in found.notes[0]
    assert "Only 1 steps were recorded" in found.notes[1]


def test_without_steps_times_are_matched_by_their_order():
    found = nw.whatif(Recorded.of([[1.0, 2.0, 3.0, 1.0], [2.0, 1.0]]))
    assert found.synchronous.seconds == 2 + 2 + 3 + 1
    assert "matched by their order" in found.notes[0]


def test_a_range_is_wider_when_slow_phases_are_long():
    phases = np.where(np.arange(400) % 200 < 100, 1.0, 5.0)
    shuffled = phases[np.random.default_rng(0).permutation(400)]
    long, short = (nw.whatif(Recorded.of([times, np.ones(400)])).asynchronous for times in (phases, shuffled))
    assert long.high - long.low > 2 * (short.high - short.low)


def test_ranges_depend_on_the_seed_only():
    job = nw.speeds.alibaba(1)
    first, again, other = (nw.whatif(job, seed=seed).asynchronous for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert first.saved == other.saved


def test_the_figure_shows_workers_and_alternatives():
    found = nw.whatif(STRAGGLER)
    workers, ways = nw.plots.whatif(found).axes
    assert [text.get_text() for text in workers.get_xticklabels()] == ["0", "1", "2"]
    assert [bar.get_width() for bar in ways.patches] == pytest.approx(
        [100 * (1 - one.saved) for one in found.alternatives]
    )
    with pytest.raises(TypeError, match=r"whatif draws the result of nw.whatif, got 3"):
        nw.plots.whatif(3)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="lists of times has times of one worker only, which waits for nobody"):
        nw.whatif(Recorded.of([[1.0, 2.0]]))
    with pytest.raises(TypeError, match=r"recorded must be a nowait Recorded such as nw.speeds.Recorded.read"):
        nw.whatif("trace.parquet")
    with pytest.raises(ValueError, match="resamples must be an integer of at least 2, got 1"):
        nw.whatif(STRAGGLER, resamples=1)


def test_the_command_prints_and_writes_what_waiting_costs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.csv").write_text("host,ms\na,1\nb,1\nc,10\na,1\nb,1\nc,10\n")
    columns = ["--worker-column", "host", "--seconds-column", "ms", "--unit", "ms"]
    result = RUNNER.invoke(app, ["whatif", "job.csv", *columns])
    assert result.exit_code == 0, result.output
    assert "worker c is the\n  slowest" in result.output
    assert "For a manager: the machines of this job spend 60 % of their time waiting" in result.output
    assert (tmp_path / "runs/whatif-1/whatif.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((tmp_path / "runs/whatif-1/whatif.json").read_text())
    assert stored["alternatives"][0]["seconds"] == pytest.approx(0.02)
    result = RUNNER.invoke(app, ["whatif", "job.csv", *columns, "--world-size", "5", "--folder", "of-five"])
    assert "No verdict: the record lacks 2 of 5 workers," in result.output
    result = RUNNER.invoke(app, ["whatif", "alibaba:4", "--json", "--folder", "four"])
    assert json.loads(result.stdout)["speedup_by_formula"] == pytest.approx(3.26, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.csv"], "nothing.csv does not exist"),
        (["alibaba:5"], "job must be at most 4, got 5"),
        (["alibaba:four"], "are alibaba:1 to alibaba:4, got alibaba:four"),
        (["alibaba:4", "--unit", "ms"], "omit options that describe a file"),
        (["alibaba:4", "--folder", "."], ". exists: choose another --folder"),
    ],
)
def test_the_command_refuses_wrong_options_before_it_writes_anything(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["whatif", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert words in result.output
    assert not list(tmp_path.iterdir())


def test_a_plan_takes_recorded_jobs_with_their_averages():
    source = Source.of_speeds(STRAGGLER, seed=0)
    assert source.seconds.tolist() == [1.0, 1.0, 10.0]
    assert (source.rate, source.round_seconds) == (2.1, 10.0)
    assert source.words == "lists of times: 3 workers, 6 times"


def test_the_other_commands_take_recorded_jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.csv").write_text("worker,seconds\n0,1\n1,1\n2,10\n")
    planned = RUNNER.invoke(app, ["plan", "--trace", "job.csv", "--gradients", "300", "--seeds", "1", "--json"])
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.stdout)["source"] == "job.csv: 3 workers, 3 times"
    made = RUNNER.invoke(app, ["simulate", "--speeds", "job.csv", "--steps", "50", "--stepsize", "0.001"])
    assert made.exit_code == 0, made.output
    assert set(nw.load("runs/simulate-1").trace.compute_seconds) == {1.0, 10.0}
