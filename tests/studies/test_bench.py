import itertools
import json
import math
import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait import methods
from nowait.cli import app
from nowait.core import Method
from nowait.recording.errors import DamagedFileError
from nowait.studies.bench import folder as folders
from nowait.studies.bench import suite as suites
from nowait.studies.bench.bench import missing_jobs, run_suite
from nowait.studies.bench.clusters import WORKERS, clusters
from nowait.studies.bench.contenders import UPDATES, Contender, Scales, contenders, single
from nowait.studies.bench.folder import BenchFolder
from nowait.studies.bench.jobs import Job, cell_of
from nowait.studies.bench.measuring import Cell
from nowait.studies.bench.own_methods import own_contender
from nowait.studies.bench.page import page
from nowait.studies.bench.phase import phase_entry
from nowait.studies.bench.phase_grid import PhaseGrid, PhasePoint
from nowait.studies.bench.pool import computed
from nowait.studies.bench.problems import BenchProblem, least_squares
from nowait.studies.bench.records import Entry, Measured, Task
from nowait.studies.bench.result import Bench
from nowait.studies.bench.scores import Scores
from nowait.studies.bench.suite import SUITES, Suite, Workload, suite
from nowait.studies.bench.tuning import RANGE, Score, Tuning
from nowait.studies.bench.verify import chosen_results, verify

PROBLEM = BenchProblem(
    name="tiny",
    title="a tiny problem",
    make=least_squares(60, 4, 0.01, 8),
    target=0.02,
    seconds=20.0,
    unit=4.0,
    scales=Scales(0.2, 2.0),
)
TWO = ("MinibatchSGD", "AsynchronousSGD, adaptive")


TINY = Suite(
    "tiny",
    (Workload(PROBLEM, ("equal", "spot"), Tuning(grid=4, rounds=1), tuning_seeds=(101,), seeds=(1, 2)),),
    PhaseGrid(workers=(), ratios=(), noises=()),
    methods=TWO,
)
POINT = PhasePoint(4, 0.001, ratio=16.0)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(SUITES, "tiny", TINY)
    return TINY


@pytest.fixture(scope="module")
def point():
    return phase_entry(POINT)


# The frozen suites


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("small", "e563d4c608486653"),
        ("full", "1e9f6e7b9389aba4"),
    ],
)
def test_a_suite_is_frozen_a_change_needs_a_new_version(name, digest):
    assert suites.VERSION == "1"
    assert suite(name).digest()[:16] == digest


NOT_YET: set[str] = {"Auto"}
"""Methods that are newer than the suite: they wait for its next version."""


def test_every_method_of_the_library_is_a_contender():
    compared = {name.partition(",")[0] for name in contenders(Scales(1.0, 1.0))}
    kinds = [getattr(methods, name) for name in methods.__all__]
    known = {kind.__name__ for kind in kinds if isinstance(kind, type) and issubclass(kind, Method)}

    assert compared == known - {"Method"} - NOT_YET


@pytest.mark.parametrize("name", [name for name in clusters() if name not in ("spot", "pareto")])
def test_a_cluster_computes_as_many_gradients_per_second_as_it_has_workers(name):
    speeds = clusters()[name].speeds()
    timing = speeds.timing(0)
    means = [np.mean([timing(worker, job, 0.0)[0] for job in range(1_000)]) for worker in range(WORKERS)]

    assert speeds.num_workers == WORKERS
    assert np.mean(1 / np.array(means)) == pytest.approx(1.0, rel=0.02 if "alibaba" not in name else 0.15)


def test_bursts_are_phases_and_not_single_slow_gradients():
    own = clusters()["bursts"].speeds().seconds[0]
    slow = own > 3 * np.median(own)
    begins = int(np.sum(np.diff(slow.astype(int)) == 1))

    assert 0 < begins < slow.sum() < len(own) / 2


# Tuning


def bowl(best):
    """Return a measure whose time to the target grows with the distance from the best stepsize."""
    tried = []

    def measure(trial, limit):
        tried.append((trial, limit))
        return Score(missed=False, worst=1.0 + abs(math.log(trial.stepsize / best)))

    return measure, tried


@pytest.mark.parametrize("num_choices", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("best_size", [0.1, 2.0, 12.0])
def test_every_method_has_the_same_number_of_trials_and_finds_the_best_stepsize(num_choices, best_size):
    contender = Contender(dict.fromkeys(map(str, range(num_choices)), methods.MinibatchSGD), updates=("usual",))
    measure, tried = bowl(best_size)

    best, score = Tuning(grid=12, rounds=3).best(contender, 1.0, 10, measure)

    assert len(tried) == Tuning(grid=12, rounds=3).trials == 18
    assert best.stepsize == pytest.approx(best_size, rel=0.5)
    assert score.worst < 1.5


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_the_grid_lies_evenly_around_the_middle(count):
    contender = Contender(dict.fromkeys(map(str, range(18 // count)), methods.MinibatchSGD), updates=("usual",))

    trials, ratio = Tuning(grid=18, rounds=0).grid_of(contender, 1.0, 10)

    sizes = sorted({trial.stepsize for trial in trials})
    assert len(sizes) == count
    assert sizes[0] * sizes[-1] == pytest.approx(1.0, rel=1e-3)
    assert ratio**count == pytest.approx(RANGE)


def test_more_choices_than_trials_are_refused():
    contender = Contender(dict.fromkeys(map(str, range(7)), methods.MinibatchSGD))

    with pytest.raises(ValueError, match="at most 12 combinations"):
        Tuning(grid=12, rounds=1).grid_of(contender, 1.0, 10)


def test_a_trial_is_stopped_when_it_is_worse_than_the_best_so_far():
    measure, tried = bowl(best=1.0)

    Tuning(grid=4, rounds=1).best(single(methods.MinibatchSGD, updates=("usual",)), 1.0, 10, measure)

    limits = [limit for _, limit in tried]
    best = list(itertools.accumulate((1.0 + abs(math.log(trial.stepsize)) for trial, _ in tried), min))
    assert limits == [math.inf, *best[:-1]]


def test_without_a_trial_that_reaches_the_target_the_lowest_loss_is_best():
    contender = single(methods.MinibatchSGD, updates=("usual",))

    best, score = Tuning(grid=5, rounds=1).best(
        contender, 1.0, 10, lambda trial, limit: Score(missed=True, worst=trial.stepsize)
    )

    assert score.missed
    assert best.stepsize < 0.1


# Computing, going on, verifying


def test_results_are_computed_once_and_an_interrupted_benchmark_goes_on(tiny, tmp_path):
    whole = run_suite(tiny, tmp_path)
    kept = BenchFolder.open(tmp_path)
    assert len(whole.entries) == 4
    assert missing_jobs(tiny, kept) == []

    lines = (tmp_path / folders.ENTRIES).read_bytes().splitlines(keepends=True)
    (tmp_path / folders.ENTRIES).write_bytes(b"".join(lines[:2]) + lines[2][:100])  # killed while it wrote
    assert len(missing_jobs(tiny, kept)) == 2
    again = run_suite(tiny, tmp_path)

    assert {entry.task.key: entry for entry in again.entries} == {entry.task.key: entry for entry in whole.entries}


def test_the_result_of_an_entry_is_the_time_of_the_first_step_at_the_target(tiny):
    task = Task("tiny", "equal", "MinibatchSGD")
    cell = Cell(tiny, task, tiny.contender(task))

    entry = cell.entry()

    method, seconds = cell.method_of(entry.trial), entry.runs[0].seconds
    run = nw.simulate(cell.problem, method, cell.speeds, seconds=seconds, evaluate_every=1, seed=1)
    coarse = cell.run(entry.trial, seed=1)
    assert run.history.loss[-1] <= PROBLEM.target < run.history.loss[:-1].min()
    assert seconds <= coarse.history.time[-1]
    assert [one.seed for one in entry.runs] == [1, 2]


def test_verified_results_have_the_same_bits_and_traces_are_replayed(tiny, tmp_path):
    run_suite(tiny, tmp_path)

    found = verify(tmp_path)

    assert len(found) == 8
    assert [run.differing for run in found] == [()] * 8
    assert sum(run.replayed for run in found) == 4


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"params": "0" * 16}, "the last params"), ({"seconds": 1.0}, "the time"), ({"trace": "0" * 16}, "the arrivals")],
)
def test_a_result_that_cannot_be_repeated_is_found(tiny, tmp_path, changed, words):
    run_suite(tiny, tmp_path)
    kept = BenchFolder.open(tmp_path)
    entry = next(iter(kept.entries().values()))
    kept.add(replace(entry, runs=(replace(entry.runs[0], **changed), *entry.runs[1:])))

    found = verify(tmp_path)

    (only,) = [run for run in found if run.differing]
    assert words in only.differing


def test_results_of_some_seeds_only_are_found(tiny, tmp_path):
    run_suite(tiny, tmp_path)
    kept = BenchFolder.open(tmp_path)
    entry = next(iter(kept.entries().values()))
    kept.add(replace(entry, runs=entry.runs[:1]))

    assert [run.differing for run in verify(tmp_path, only=entry.key)] == [("the seeds",)]


def test_damaged_results_are_not_verified(tiny, tmp_path):
    run_suite(tiny, tmp_path)
    path = tmp_path / folders.ENTRIES
    path.write_bytes(path.read_bytes().replace(b'"stepsize": ', b'"stepsize": 1', 1))

    with pytest.raises(DamagedFileError, match="line 1 is damaged"):
        verify(tmp_path)


def test_a_damaged_trace_is_found_and_the_others_are_verified(tiny, tmp_path):
    run_suite(tiny, tmp_path)
    trace = sorted(tmp_path.rglob("*.npz"))[0]
    trace.write_bytes(trace.read_bytes()[:100])

    assert sorted(run.differing for run in verify(tmp_path)) == [()] * 7 + [("the stored trace",)]


def test_points_of_the_phase_diagram_are_verified(tiny, tmp_path, point):
    run_suite(tiny, tmp_path)
    kept = BenchFolder.open(tmp_path)
    kept.add_phase(point)
    assert [run.differing for run in verify(tmp_path, only="4 workers")] == [()]

    kept.add_phase(replace(point, seconds=point.seconds | {"MinibatchSGD": 1.0}))
    assert [run.differing for run in verify(tmp_path, only="4 workers")] == [("the times",)]


def test_two_benchmarks_in_one_folder_are_refused(tiny, tmp_path):
    run_suite(tiny, tmp_path)
    other = BenchFolder.open(tmp_path)
    other.lock()

    with pytest.raises(ValueError, match="locked"):
        run_suite(tiny, tmp_path)
    other.unlock()
    run_suite(tiny, tmp_path)


def test_a_folder_of_another_suite_is_refused(tiny, tmp_path):
    run_suite(tiny, tmp_path)

    with pytest.raises(ValueError, match="another benchmark"):
        BenchFolder.open_or_create(tmp_path, SUITES["small"])


def test_results_of_another_version_of_the_suite_are_not_verified(tiny, tmp_path, monkeypatch):
    run_suite(tiny, tmp_path)
    monkeypatch.setitem(SUITES, "tiny", replace(tiny, methods=TWO[:1], workloads=()))

    with pytest.raises(ValueError, match="another suite tiny"):
        verify(tmp_path)


def test_a_folder_with_other_files_is_refused(tiny, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")

    with pytest.raises(FileExistsError, match="not empty"):
        run_suite(tiny, tmp_path)


def test_a_sample_of_entries_is_spread_evenly():
    entries = [an_entry(f"m{place}", 1.0) for place in range(10)]

    assert [entry.method for entry in chosen_results(entries, 3, "")] == ["m0", "m3", "m6"]
    assert [entry.method for entry in chosen_results(entries, None, "/m4")] == ["m4"]
    with pytest.raises(ValueError, match="no result"):
        chosen_results(entries, None, "nothing")


def test_processes_compute_the_same(tmp_path, point):
    jobs = [Job("small", tmp_path, POINT, 1.0)]

    results = computed(jobs, processes=1, check=lambda: None)

    assert [result for _, result in results] == [point]


def test_processes_end_when_the_caller_stops(tmp_path):
    class StoppedError(Exception):
        pass

    def stop():
        raise StoppedError

    before = set(multiprocessing.active_children())  # other tests may have some
    with pytest.raises(StoppedError):
        list(computed([Job("small", tmp_path, PhasePoint(4, 0.001, ratio=2.0), 1.0)], processes=1, check=stop))
    assert set(multiprocessing.active_children()) <= before


# Methods of the user's own


OWN = """
from dataclasses import dataclass
from typer.testing import CliRunner

import nowait as nw

@dataclass
class Mine(nw.Method):
    stepsize: nw.Stepsize
    def on_arrival(self, server, arrival):
        server.apply(arrival, self.stepsize.at(arrival, server))
        server.assign(arrival.worker)

several = {"fast": Mine, "slow": lambda size: Mine(size / 10)}
number = 3
needs_more = lambda size, batch: Mine(size)
other = lambda size: size
nothing = {}
"""


def test_a_method_of_ones_own_is_tuned_and_compared(tiny, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    text = f"{tmp_path}/own.py:Mine"

    found = run_suite(tiny, tmp_path / "results", own=(text,))

    assert len(found.entries) == 6
    assert text in [standing.method for standing in found.standings()]
    assert [run.differing for run in verify(tmp_path / "results", only="own.py")] == [()] * 4


def test_a_method_whose_file_changed_is_computed_again(tiny, tmp_path):
    path, results = tmp_path / "own.py", tmp_path / "results"
    path.write_text(OWN)
    run_suite(tiny, results, own=(f"{path}:Mine",))
    kept = BenchFolder.open(results)
    assert missing_jobs(tiny, kept, (f"{path}:Mine",)) == []

    path.write_text(OWN + "# changed")

    assert [job.work.method for job in missing_jobs(tiny, kept, (f"{path}:Mine",))] == [f"{path}:Mine"] * 2


def test_a_method_that_fails_is_named(tmp_path):
    (tmp_path / "own.py").write_text(OWN.replace("server.apply", "raise RuntimeError('oh'); server.apply"))
    task = Task("digits", "equal", f"{tmp_path}/own.py:Mine")

    with pytest.raises(ValueError, match=r"digits/equal/.*own\.py:Mine failed: RuntimeError: oh"):
        list(computed([Job("small", tmp_path, task, 1.0)], processes=1, check=lambda: None))


def test_a_dictionary_is_several_choices_of_parameters(tmp_path):
    (tmp_path / "own.py").write_text(OWN)

    contender = own_contender(f"{tmp_path}/own.py:several")

    assert contender.combinations() == [
        (choice, update) for choice in ("fast", "slow") for update in ("usual", "momentum")
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own.py:missing", "has no missing"),
        ("own.py:mine", "has no mine; did you mean 'Mine'"),
        ("own.py:", "file.py:name"),
        ("own.py:number", "function of the stepsize"),
        ("own.py:needs_more", "stepsize alone"),
        ("own.py:other", "nw.Method"),
        ("other.py:Mine", "no file"),
        ("Mine", "file.py:name"),
        ("broken.py:Mine", "line 1: invalid syntax"),
        ("own.py:nothing", "empty dictionary"),
    ],
)
def test_wrong_methods_of_ones_own_are_refused(tmp_path, name, words):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("class = 1")

    with pytest.raises((ValueError, TypeError), match=words):
        own_contender(f"{tmp_path}/{name}" if ".py" in name else name)


# Scores


def an_entry(method, *times, problem="p", cluster="c"):
    runs = tuple(
        Measured(seed, None if time == math.inf else time, 0.1, 1, 1, "", "", "") for seed, time in enumerate(times)
    )
    config = {"method": method, "update": "usual"}
    return Entry(problem, cluster, method, "", "usual", 0.1, config, None, runs)


def some_scores():
    return Scores(
        [
            *(an_entry("a", 1.0, 3.0, 2.0), an_entry("a", 8.0, 8.0, 8.0, cluster="d")),
            *(an_entry("b", 4.0, 4.0, math.inf), an_entry("b", 4.0, 4.0, 4.0, cluster="d")),
            *(an_entry("c", math.inf, math.inf, 1.0), an_entry("c", 8.0, 8.0, 8.0, cluster="d")),
        ]
    )


def test_times_are_medians_relative_to_the_best_of_the_column():
    scores = some_scores()

    assert scores.medians.tolist() == [[2.0, 8.0], [4.0, 4.0], [math.inf, 8.0]]
    assert scores.ratios.tolist() == [[1.0, 2.0], [2.0, 1.0], [math.inf, 2.0]]
    assert scores.ranks.tolist() == [[1.0, 2.5], [2.0, 1.0], [3.0, 2.5]]


def test_the_score_is_the_area_under_the_performance_profile():
    scores = some_scores()
    ratios = np.linspace(1.0, 4.0, 30_001)

    for method in scores.methods:
        profile = scores.profile(method, ratios)
        assert scores.score(method) == pytest.approx(float(profile[:-1].mean()), abs=1e-3)
    assert [standing.method for standing in scores.standings()] == ["b", "a", "c"]
    assert scores.standings()[2].reached == 1


def test_a_method_that_is_missing_in_a_column_is_judged_by_the_others():
    scores = Scores([an_entry("a", 1.0), an_entry("b", 2.0), an_entry("a", 3.0, cluster="d")])

    assert scores.score("b") == pytest.approx(2 / 3)
    assert math.isnan(scores.ranks[1, 1])
    assert [standing.method for standing in scores.standings()] == ["a", "b"]


def test_a_method_that_was_not_measured_everywhere_is_listed_last():
    scores = Scores([an_entry("a", 2.0), an_entry("b", 1.0), an_entry("a", 3.0, cluster="d")])

    assert [(one.method, one.columns) for one in scores.standings()] == [("a", 2), ("b", 1)]


def test_a_folder_without_results_can_be_printed():
    assert "0 pairs" in str(Bench({}, (), ()))


def test_a_phase_point_names_the_first_method_and_its_lead(point):
    assert point.winner == min(point.seconds, key=lambda name: point.seconds[name] or math.inf)
    assert point.winner != "MinibatchSGD"
    assert point.seconds["MinibatchSGD"] > 3 * point.seconds[point.winner]
    assert replace(point, seconds={"a": 2.0, "b": 3.0, "c": None}).lead() == 1.5
    assert replace(point, seconds={"a": None}).winner is None


def test_recorded_jobs_have_the_published_heterogeneity():
    found = [PhasePoint(10, 0.1, job=job).heterogeneity() for job in (1, 2, 3, 4)]

    assert found == pytest.approx([1.07, 1.13, 1.07, 3.26], abs=0.01)


# The page and the command


def test_the_page_names_every_method_and_has_all_times(tiny, tmp_path, point):
    found = replace(run_suite(tiny, tmp_path), phases=(point,))
    text = page(found, tiny, "nowait bench")

    for method in TWO:
        assert f"<td>{method}</td>" in text
    assert text.count("<td") == 2 * 5 + 2 * 3
    assert found.header["date"] in text
    assert found.header["digest"][:16] in text
    assert 'src="http' not in text
    assert text.count("data:image/png") == 2


def test_results_convert_to_json_and_print_in_80_columns(tiny, tmp_path):
    found = run_suite(tiny, tmp_path)

    assert json.loads(json.dumps(found.as_dictionary()))["standings"][0]["method"] == found.standings()[0].method
    assert Bench.load(tmp_path).standings() == found.standings()
    assert all(len(line) <= 80 for line in str(found).splitlines())


def test_pytorch_models_are_refused_before_work_starts_where_pytorch_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ValueError, match="need PyTorch"):
        nw.bench("full", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_pytorch_computes_with_one_thread_from_the_first_job_on():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        cell_of(SUITES["full"], Task("convolutional", "equal", "MinibatchSGD"))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_updates_are_known_by_name():
    for contender in contenders(Scales(1.0, 1.0)).values():
        assert set(contender.updates) <= set(UPDATES)


def command(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], env={"COLUMNS": "200"})


def test_the_command_prints_the_standings_and_publishes_what_can_be_verified(tiny, tmp_path):
    run_suite(tiny, tmp_path / "results")

    result = command("--tier", "tiny", "--folder", tmp_path / "results", "--page", tmp_path / "docs")

    assert result.exit_code == 0, result.output
    assert all(method in result.output for method in TWO)
    published = {path.name for path in (tmp_path / "docs").iterdir()}
    assert published == {"index.html", folders.HEADER, folders.ENTRIES}
    assert command("--verify", tmp_path / "docs", "--sample", 2).output.startswith("4 runs of 2 entries computed again")


def test_the_command_has_status_1_if_a_result_cannot_be_repeated(tiny, tmp_path):
    run_suite(tiny, tmp_path)
    kept = BenchFolder.open(tmp_path)
    entry = next(iter(kept.entries().values()))
    kept.add(replace(entry, runs=(replace(entry.runs[0], steps=1), *entry.runs[1:])))

    result = command("--verify", tmp_path, "--only", entry.task.key)

    assert result.exit_code == 1
    assert f"{entry.task.key}, seed 1: the steps differ" in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tier", "huge"), "'small', 'full'"),
        (("--method", "missing.py:Mine"), "no file missing.py"),
        (("--problem", "nothing"), "'breast-cancer'"),
        (("--sample", 3), "for --verify"),
    ],
)
def test_wrong_options_are_refused_before_work_starts(tmp_path, options, words):
    result = command("--folder", tmp_path / "results", *options)

    assert result.exit_code == 2
    assert words in result.output
    assert not (tmp_path / "results").exists()
