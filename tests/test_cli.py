"""The command line, as a user calls it."""

import dataclasses
import json
import logging
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import nowait as nw
from names import typed
from nowait.cli import app, main
from nowait.cli.cluster import mixed_cluster, spread_cluster
from nowait.cli.commands import COMMANDS
from nowait.cli.methods import default_stepsize, known_methods, parse_method
from nowait.cli.problems import load_problem, unit_of
from nowait.cli.texts import target_of
from nowait.core.audit import checked_audit
from nowait.studies import paper_methods, usual_methods


@pytest.fixture(autouse=True)
def logging_as_before():
    """Restore the log level, which the command changes for its own process; tests share one process."""
    logger = logging.getLogger("nowait")
    level = logger.level
    yield
    logger.setLevel(level)


RUNNER = CliRunner()
DATA = Path(__file__).parent / "small.libsvm"
SMALL = ["race", "--workers", "3", "--gradients", "300", "--batch-size", "4", "--problem", str(DATA)]
SIMULATED = [*SMALL, "--engine", "simulate"]


def test_the_race_prints_a_table_and_writes_a_report_figures_and_its_runs(tmp_path):
    result = RUNNER.invoke(app, [*SIMULATED, "--folder", str(tmp_path / "race")], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for words in (
        "Minibatch SGD",
        "Asynchronous SGD, delay-adaptive",
        "the best is",
        "virtual seconds",
        "After the same",
    ):
        assert words in result.output
    race = tmp_path / "race"
    assert (race / "race.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (race / "race.svg").read_text()
    assert "Minibatch SGD" in (race / "report.html").read_text()
    assert json.loads((race / "config.json").read_text())["workers"] == 3
    assert json.loads((race / "race.json").read_text())["runs"].keys() == usual_methods().keys()
    for name in ("minibatch-sgd", "asynchronous-sgd-delay-adaptive", "minibatch-sgd-momentum", "first-m-momentum"):
        assert nw.load(race / name).stats.gradients > 0
    assert nw.load(race / "auto").config["method"]["type"] == "Auto"


def test_the_papers_race_and_a_method_that_joins_it(tmp_path):
    options = ["--paper", "--method", "ringmaster:max_delay=4", "--folder", str(tmp_path / "race"), "--json"]
    result = RUNNER.invoke(app, [*SIMULATED, *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["method"] for row in found["rows"]] == [*paper_methods(), "ringmaster:max_delay=4"]
    assert found["config"]["seconds_per_gradient"] == pytest.approx((1.02 * spread_cluster(3, 1.0)).tolist(), rel=0.2)


def test_a_straggler_is_another_cluster(tmp_path):
    options = ["--quick", "--straggler", "20", "--folder", str(tmp_path / "race"), "--json"]
    result = RUNNER.invoke(app, [*SIMULATED, *options])
    assert result.exit_code == 0, result.output
    config = json.loads(result.stdout)["config"]
    assert config["seconds_per_gradient"] == pytest.approx((1.02 * mixed_cluster(3, 20.0, 0)).tolist(), rel=0.2)
    assert config["settings"]["Auto"] == config["settings"]["Minibatch SGD, momentum"]


def test_the_race_runs_with_real_workers_and_further_methods(tmp_path):
    options = ["--method", "ringmaster:max_delay=4", "--straggler", "3", "--folder", str(tmp_path / "race"), "--json"]
    result = RUNNER.invoke(app, [*SMALL, *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["method"] for row in found["rows"]][-1] == "ringmaster:max_delay=4"
    assert sum(row["gradients"] for row in found["rows"]) > 0, "each has a few seconds, which a busy machine may use up"
    assert found["config"]["engine"] == "processes"
    assert nw.load(tmp_path / "race" / "minibatch-sgd").stats.engine == "processes"


def test_a_native_race_leaves_delays_to_the_machine(tmp_path):
    options = ["--native", "--straggler", "5", "--folder", str(tmp_path / "race")]
    result = RUNNER.invoke(app, [*SMALL, *options], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "at the speed of this machine, but worker 2 is slowed 5 x" in result.output
    assert (tmp_path / "race" / "minibatch-sgd").is_dir()


def test_a_race_of_spread_speeds(tmp_path):
    options = ["--spread", "1.5", "--thorough", "--seeds", "2", "--folder", str(tmp_path / "race"), "--json"]
    result = RUNNER.invoke(app, [*SIMULATED, *options])
    assert result.exit_code == 0, result.output
    config = json.loads(result.stdout)["config"]
    assert config["seconds_per_gradient"] == pytest.approx((1.02 * spread_cluster(3, 1.5)).tolist(), rel=0.2)
    assert (config["tuning"]["share_of_the_time"], config["tuning"]["seeds"]) == (1.0, [2, 3, 4])
    assert config["tuning"]["trials"] == 12


def test_spread_speeds_of_real_workers_have_the_usual_rate(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("nowait.cli.race.race", lambda *_, **options: asked.append(options) or sys.exit(7))
    result = RUNNER.invoke(app, [*SMALL, "--spread", "2", "--folder", str(tmp_path / "race")])
    assert result.exit_code == 7
    (options,) = asked
    medians = np.array(options["speeds"].medians)
    assert (1 / medians).sum() == pytest.approx(2_000)
    np.testing.assert_allclose(medians / medians[1], spread_cluster(3, 2.0), rtol=1e-6)
    assert options["probe_seconds"] == pytest.approx(max(2.0, 3 * medians.max()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spread", "1", "--native"], "--spread slows workers, --native does not"),
        (["--spread", "1", "--straggler", "3"], "--spread and --straggler are two kinds of clusters"),
    ],
)
def test_a_spread_excludes_other_clusters(options, message, tmp_path):
    result = RUNNER.invoke(app, [*SMALL, *options, "--folder", str(tmp_path / "race")])
    assert result.exit_code == 2
    assert message in result.output


def test_the_race_uses_a_new_folder_every_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "race-1").mkdir(parents=True)
    assert RUNNER.invoke(app, SIMULATED).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["race-1", "race-2"]


def run_main(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["nowait", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code, capsys.readouterr()


def test_train_with_resume_starts_continues_and_shows_a_run(tmp_path, monkeypatch):
    """Without --stepsize it keeps the one of the first call, which is not estimated again."""
    train = ["train", "--workers", "1", "--json", "--resume", "--folder", str(tmp_path / "run"), "--steps"]
    first = RUNNER.invoke(app, [*train, "20"])
    assert first.exit_code == 0, first.output
    monkeypatch.setattr("nowait.cli.stepping.unit_of", lambda problem: 1e9)
    second, third = (RUNNER.invoke(app, [*train, "30"]) for _ in range(2))
    assert json.loads(second.stdout)["stats"]["steps"] == 30
    assert json.loads(third.stdout) == json.loads(second.stdout)
    assert nw.load(tmp_path / "run").trace.events["kind"].tolist() == [3], "it was resumed once"
    refused = RUNNER.invoke(app, [*train, "30", "--stepsize", "0.125"])
    assert refused.exit_code == 2
    assert "method.stepsize.gamma of the run in" in refused.output
    assert "pass the method of the run, or --allow-changes to go on with another" in refused.output
    assert "allow_changes=True" not in refused.output
    refused = RUNNER.invoke(app, [*train, "30", "--seed", "1"])
    assert refused.exit_code == 2
    assert "seed of the run in" in refused.output
    changed = RUNNER.invoke(app, [*train, "40", "--stepsize", "0.125", "--allow-changes"])
    assert json.loads(changed.stdout)["stats"]["steps"] == 40


def test_resume_names_its_option_for_another_problem(tmp_path, monkeypatch):
    """A problem whose gradient differs a little; other differences are refused in any case."""
    (tmp_path / "alike.py").write_text(
        "import nowait as nw\n"
        "class Alike(nw.problems.NoisyQuadratic):\n"
        "    def gradient_into(self, point, sample, out):\n"
        "        super().gradient_into(point, sample, out)\n"
        "        out *= self.factor\n"
        "def made(factor):\n"
        "    problem = Alike(dimension=3, sigma=0.1)\n"
        "    problem.factor = factor\n"
        "    return problem\n"
        "def problem():\n    return made(1.0)\n"
        "def other():\n    return made(1.01)\n"
    )
    monkeypatch.chdir(tmp_path)
    train = ["train", "alike.py:problem", "--workers", "1", "--stepsize", "0.1", "--steps", "20", "--folder", "run"]
    assert RUNNER.invoke(app, train).exit_code == 0
    resume = ["resume", "run", "--steps", "30", "--json", "--problem", "alike.py:other"]
    refused = RUNNER.invoke(app, resume)
    assert refused.exit_code == 2
    assert "deep networks another number of threads; --allow-changes goes on all the same" in refused.output
    assert json.loads(RUNNER.invoke(app, [*resume, "--allow-changes"]).stdout)["stats"]["steps"] == 30


@pytest.mark.parametrize(
    ("text", "audit"),
    [
        ("0.01", nw.Audit(0.01)),
        ("0", nw.Audit(0.0)),
        ("off", None),
        ("0.01:on_difference=leave-out", nw.Audit(0.01, on_difference="leave out")),
        ("1:tolerance=1e-6,on_difference=STOP", nw.Audit(1.0, tolerance=1e-6)),
        (None, nw.Audit(0.0)),
    ],
)
def test_audit_is_an_option_of_all_commands_that_train(text, audit, tmp_path, monkeypatch):
    asked = {}
    for name in ("train", "resume"):
        monkeypatch.setattr(nw, name, lambda *_, name=name, **options: asked.update({name: options}) or sys.exit(7))
    stored = {"labels": {}, "method": {"type": "AsynchronousSGD"}}
    monkeypatch.setattr("nowait.cli.runs.read_config", lambda _: stored)
    code = "import nowait as nw\ndef problem():\n    return nw.problems.NoisyQuadratic(dimension=3)\n"
    path = tmp_path / f"audited_{tmp_path.name}.py"
    path.write_text(code)
    problem, option = f"{path}:problem", [] if text is None else ["--audit", text]
    usual = [problem, "--steps", "5", "--stepsize", "0.1", "--folder", str(tmp_path / "run"), *option]
    keys = ["--key-file", str(tmp_path / "key"), "--listen", "127.0.0.1:7070"]
    for command in (["train", *usual], ["serve", *usual, *keys]):
        result = RUNNER.invoke(app, command)
        assert result.exit_code == 7, result.output
        assert checked_audit(asked.pop("train")["audit"]) == audit
    assert RUNNER.invoke(app, ["resume", str(tmp_path), "--problem", problem, *option]).exit_code == 7
    given = asked["resume"]["audit"]
    assert given is None if text is None else checked_audit(given) == audit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "--resume needs --folder, the folder of the run to start or to continue"),
        (["--resume", "--folder", "."], ". exists: choose another --folder"),
    ],
)
def test_resume_is_refused_where_there_is_no_run(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    code, printed = run_main(monkeypatch, capsys, "train", "--steps", "5", *options)
    assert code == 2
    assert printed.err == f"nowait: {message}\nTry: nowait train --help\n"


def test_a_folder_that_exists_is_refused_before_the_race(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine").touch()
    code, printed = run_main(monkeypatch, capsys, "race", "--folder", str(tmp_path))
    assert code == 2
    assert printed.err == f"nowait: {tmp_path} exists: choose another --folder\nTry: nowait race --help\n"


def test_a_folder_that_cannot_be_made_is_refused_before_any_work(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "run"
    code, printed = run_main(monkeypatch, capsys, "train", "--steps", "5", "--folder", str(folder))
    assert code == 2
    assert f"cannot make the folder {folder}, because {tmp_path / 'file'} is a file: choose another" in printed.err
    assert printed.out == ""


def test_a_folder_that_cannot_be_made_is_told_before_the_race(monkeypatch, capsys):
    code, printed = run_main(monkeypatch, capsys, "race", "--folder", "/proc/nowhere/race")
    assert code == 2
    assert printed.err.startswith("nowait: cannot make the folder /proc/nowhere/race")
    assert printed.out == ""


def test_a_wrong_option_is_told_in_a_line(monkeypatch, capsys):
    code, printed = run_main(monkeypatch, capsys, "race", "--workers", "1")
    assert code == 2
    assert "--workers" in printed.err


def test_the_version(monkeypatch, capsys):
    code, printed = run_main(monkeypatch, capsys, "--version")
    assert (code, printed.out.strip()) == (0, nw.__version__)


SMALL_SWEEP = ["sweep", "--workers", "4", "--gradients", "300", "--seeds", "2"]


def test_the_sweep_prints_a_table_and_draws_a_figure(tmp_path):
    options = ["--stepsizes", "0.01,0.1,1e6", "--folder", str(tmp_path / "sweep")]
    result = RUNNER.invoke(app, [*SMALL_SWEEP, *options])
    assert result.exit_code == 0, result.output
    rows = [line for line in result.output.splitlines() if "│" in line]
    assert [("best" in row, "2 of 2" in row) for row in rows] == [(False, False), (True, False), (False, True)]
    assert (tmp_path / "sweep" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "sweep" / "config.json").read_text())["stepsizes"] == [0.01, 0.1, 1e6]


def test_the_sweep_takes_any_method_and_data_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.libsvm").write_text("".join(f"{sign} 1:{value} 3:1\n" for sign, value in [(1, 2), (-1, -1)] * 9))
    options = ["--problem", "data.libsvm", "--loss", "logistic", "--method", "ringmaster:max_delay=3,stepsize=constant"]
    result = RUNNER.invoke(app, [*SMALL_SWEEP, *options])
    assert result.exit_code == 0, result.output
    assert "LogisticRegression(18 sparse rows, dimension 3" in result.output.replace("\n", " ")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["sweep-1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "nope"], "there is no method 'nope': choose one of adaptiverevision, asynchronous"),
        (["--method", "ringmaster"], "ringmaster needs max_delay: write ringmaster:max_delay=..."),
        (["--method", "ringmaster:depth=3"], "ringmaster has no parameter 'depth'; it has max_delay, cancel_stale"),
        (["--method", "ringmaster:max_delay"], "'max_delay' is not a parameter: write name=value"),
        (["--method", "ringmaster:max_delay=x"], "'x' is neither a number nor true or false"),
        (["--method", "asynchronous:stepsize=odd"], "there is no stepsize rule 'odd': choose one of adaptive, const"),
        (["--stepsizes", "a,b"], "--stepsizes must be numbers with commas between them, got 'a,b'"),
        (["--stepsizes", "0"], "stepsize must be a finite number above 0"),
        (["--stepsizes", "0.1,0.1"], "--stepsizes has one of them twice: 0.1,0.1"),
        (["--device", "gpu"], "device must be 'cpu', 'cuda' or 'cuda:' and the number of a GPU, got 'gpu'"),
        (["--device", "cuda:99"], "device='cuda:99' "),
        (["--loss", "odd"], "--loss must be one of least-squares, logistic, got 'odd'"),
        (["--loss", "logistic"], "the built-in problem is least squares: give --problem FILE for another loss"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_sweep_is_told_in_a_line(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, printed = run_main(monkeypatch, capsys, "sweep", *options)
    assert code == 2
    assert message in printed.err
    assert list(tmp_path.iterdir()) == []


def test_the_tables_are_printed_with_the_users_numbers():
    result = RUNNER.invoke(app, ["tables", "--seconds", "1,1,1,10", "--mu", "0.01"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for words in ("Table 1", "Table 2", "7.75", "3,100", "at most 1.29 s", "smaller without worker 3"):
        assert words in result.output


def test_the_tables_rank_all_methods_within_80_columns():
    arguments = [
        "tables",
        "--seconds",
        "1,1,1,1000",
        "--setting",
        "nonconvex",
        "--accuracy",
        "1e-5",
        "--budget",
        "2000",
    ]
    result = RUNNER.invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert "nonconvex: when ‖∇F‖² ≤ 1e-05 is guaranteed" in result.output
    rows = [line.split("│")[1].strip() for line in result.output.splitlines() if line.count("│") == 5]
    assert {"Rennala SGD", "Ringleader ASGD", "m-synchronous SGD"} <= set(rows)
    assert "…" not in result.output
    assert "times a constant, whose value is not known" in result.output.replace("\n", " ")


def test_the_tables_for_machines():
    result = RUNNER.invoke(app, ["tables", "--seconds-per-gradient", "1,3", "--json"])
    found = json.loads(result.output)
    assert [row["updates"] for row in found["table_2"]] == [333, 1333, 1333]
    assert found["table_1"][0]["strongly_convex"] is None, "mu is not known"
    assert all(row["guarantee"] <= 0.01 for row in found["ranking"])
    assert found["ranking"][-1]["method"] == "Minibatch SGD"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tables", "--seconds", "1,x"], "--seconds-per-gradient must be numbers with commas between them, got '1,x'"),
        (["tables", "--mu", "2"], "mu must not exceed L, got mu=2.0 and L=1.0"),
        (["tables", "--sigma", "-1"], "sigma must be a finite number of at least 0"),
        (["tables", "--budget", "1"], "the slowest worker (10 s per gradient) computes no gradient"),
        (
            ["plan"],
            "give the speeds by one of --seconds-per-gradient 1,1,1,10, --trace FILE (a recorded job, or the",
        ),
        (["plan", "--seconds", "1", "--workers", "2"], "give the speeds by one of"),
        (["plan", "--seconds", "1", "--problem", "nowhere.py:make"], "--problem: there is no file nowhere.py"),
        (["plan", "--seconds", "1", "--problem", "nowhere:make"], "--problem: there is no module nowhere"),
        (["plan", "--seconds", "1", "--problem", "json:make"], "json has no function make"),
        (["plan", "--seconds", "1", "--problem", "json:dumps"], "called without arguments, but needs some"),
        (["plan", "--trace", "nowhere"], "nowhere does not exist"),
        (["certify", "--setting", "odd"], "there is no setting 'odd'"),
        (["certify", "--figure", "nowhere/figure.png"], "there is no folder nowhere for --figure"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_question_of_theory_is_told_in_a_line(arguments, message, monkeypatch, capsys):
    code, printed = run_main(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in printed.err
    assert printed.err.endswith(f"\nTry: nowait {arguments[0]} --help\n")
    assert printed.err.count("\n") == 2


@pytest.mark.parametrize("command", [typed(command) for command in COMMANDS])
def test_every_command_has_an_example(command):
    assert f"Example: nowait {command}" in RUNNER.invoke(app, [command, "--help"]).output


MINE = """
import numpy as np

class Mine:
    dimension = 2
    def initial(self): return np.zeros(2)
    def gradient(self, point, sample): return point - 1.0 + 0.1 * sample.normals(2)
    def loss(self, point): return float(((point - 1.0) ** 2).sum())

def make(): return Mine()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A user's file in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_training.py").write_text(MINE)
    sys.path.insert(0, str(tmp_path))
    yield "my_training.py:make"
    sys.modules.pop("my_training", None)


def test_a_simulated_run_is_saved_replayed_and_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = RUNNER.invoke(app, ["simulate", "--speeds", "1,1,9", "--steps", "200", "--stepsize", "0.1", "--json"])
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert (found["stats"]["steps"], found["folder"]) == (200, "runs/simulate-1")
    again = RUNNER.invoke(app, ["replay", "runs/simulate-1"])
    assert "200 arrivals replayed: the same params, bit for bit." in again.output
    assert RUNNER.invoke(app, ["report", "runs", "--out", "all.html"]).exit_code == 0
    assert "Asynchronous SGD" in (tmp_path / "all.html").read_text()


def test_a_report_takes_runs_together_by_what_was_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem, speeds = nw.problems.NoisyQuadratic(4), nw.speeds.Fixed([1.0, 2.0])
    for folder, method, seed in (
        ("x-0", nw.AsynchronousSGD(nw.Constant(0.1)), 0),
        ("x-1", nw.AsynchronousSGD(nw.Constant(0.1)), 1),
        ("y-seed-0", nw.AsynchronousSGD(nw.Constant(0.1)), 2),
        ("y-seed-1", nw.MinibatchSGD(nw.Constant(0.1)), 1),
    ):
        nw.simulate(problem, method, speeds, steps=20, seed=seed).save(tmp_path / "runs" / folder)
    assert RUNNER.invoke(app, ["report", "runs", "runs/x-0", "--out", "all.html"]).exit_code == 0
    data = re.search(r'id="data">(.*?)</script>', (tmp_path / "all.html").read_text(), re.DOTALL)[1]
    assert [(method["name"], method["runs"]) for method in json.loads(data)["methods"]] == [
        ("Asynchronous SGD", 3),
        ("Minibatch SGD", 1),
    ]


def test_a_problem_of_the_users_file_is_trained_replayed_and_remembered(mine, tmp_path):
    made = RUNNER.invoke(
        app, ["train", mine, "--workers", "2", "--steps", "60", "--stepsize", "0.1", "--slowdown", "1=2"]
    )
    assert made.exit_code == 0, made.output
    config = json.loads((tmp_path / "runs" / "train-1" / "config.json").read_text())
    assert config["labels"]["command"]["problem"] == f"{tmp_path}/{mine}"
    assert config["slowdown"] == {"1": 2.0}
    assert RUNNER.invoke(app, ["replay", "runs/train-1", "--problem", mine, "--json"]).exit_code == 0


def test_targets_are_read_from_text():
    assert target_of(None) is None
    assert target_of("accuracy=0.9, perplexity <= 20,top 5>=0.99") == {
        "accuracy": 0.9,
        "perplexity": ("<=", 20.0),
        "top 5": (">=", 0.99),
    }
    for wrong in ("accuracy", "accuracy=high", "=0.9", "accuracy<0.9", ""):
        with pytest.raises(ValueError, match="--target must be written like"):
            target_of(wrong)


def test_an_interrupted_run_is_resumed_with_the_problem_that_the_user_names(mine, tmp_path):
    class CtrlC(nw.Callback):
        pressed = False

        def on_step(self, control):
            if control.steps >= 30 and not self.pressed:
                self.pressed = True
                signal.raise_signal(signal.SIGINT)

    from my_training import make

    labels = {"command": {"problem": mine, "loss": "least-squares", "batch_size": 1}}
    method = nw.AsynchronousSGD(nw.Constant(0.1))
    folder = tmp_path / "run"
    nw.train(make(), method, workers=2, steps=60, folder=folder, callbacks=[CtrlC()], labels=labels)
    resumed = RUNNER.invoke(app, ["resume", str(folder), "--problem", mine, "--json"])
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["stats"]["steps"] == 60
    beyond = RUNNER.invoke(app, ["resume", str(folder), "--problem", mine, "--steps", "60"])
    assert "has 60 steps already: steps=60 must be more than that" in str(beyond.exception)


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interrupted_run_has_the_status_of_its_signal(name, status, monkeypatch):
    run = nw.simulate(
        nw.problems.NoisyQuadratic(2), nw.AsynchronousSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0]), steps=3
    )
    ended = dataclasses.replace(run.stats, interrupted=True, advice=f"{name} ended the run after 3 steps")
    monkeypatch.setattr("nowait.cli.runs.run_train", lambda *_: dataclasses.replace(run, stats=ended))
    result = RUNNER.invoke(app, ["train", "--steps", "3"])
    assert result.exit_code == status
    assert f"nowait: {name} ended the run after 3 steps" in result.stderr


def test_a_diverged_run_has_a_status_of_its_own(mine):
    result = RUNNER.invoke(app, ["simulate", mine, "--stepsize", "1e9", "--steps", "500"])
    assert result.exit_code == 3
    assert "diverged after" in result.output


def test_a_stepsize_that_is_not_given_is_taken_from_the_smoothness(mine):
    result = RUNNER.invoke(app, ["simulate", mine, "--speeds", "1,1", "--steps", "100"])
    assert result.exit_code == 0
    assert "No --stepsize given: using 0.25, half of 1/(ML)." in result.output


PARAMETERS = {
    "ata": "batch=6",
    "clipped": "max_norm=10",
    "cycle": "group=20",
    "decoupleddiloco": "quorum=3",
    "delayednesterov": "every=3",
    "malenia": "batch=8",
    "mindflayer": "timeout_seconds=3,trials=2",
    "msynchronous": "m=4",
    "picky": "radius=0.5",
    "rennala": "batch=4",
    "ringmaster": "max_delay=8",
    "stalesynchronous": "slack=3",
}
"""Parameters of the methods that need some."""


@pytest.fixture(scope="module")
def the_default_problem():
    problem = load_problem(None, "least-squares", batch_size=16)
    return problem, unit_of(problem)


@pytest.mark.parametrize(("rule", "workers"), [("adaptive", 8), ("constant", 40)])
@pytest.mark.parametrize("name", sorted(known_methods().keys() - {"ringmasterlmo"}))
def test_every_method_ends_below_where_it_began_with_the_default_stepsize(name, rule, workers, the_default_problem):
    problem, unit = the_default_problem
    make = parse_method(f"{name}:stepsize={rule},{PARAMETERS.get(name, '')}")
    size, _ = default_stepsize(make(1.0), unit, workers)
    speeds = nw.speeds.LogNormal(mixed_cluster(workers, 10.0, seed=0).tolist(), sigma=0.2)
    run = nw.simulate(problem, make(size), speeds, gradients=1_200, evaluate_every=10**6, progress=False)
    first, last = run.history.loss[[0, -1]]
    assert not run.stats.diverged
    assert last < 0.6 * first


def test_a_stepsize_that_is_a_length_has_no_default():
    method = parse_method("ringmasterlmo:ball=sign,max_delay=8")(0.5)
    assert (method.ball, method.max_delay) == ("sign", 8)
    with pytest.raises(ValueError, match="the stepsize of RingmasterLMO is the length of a step: set --stepsize"):
        default_stepsize(method, 1.0, 4)


@pytest.mark.parametrize(
    ("method", "divisor", "words"),
    [
        (nw.AsynchronousSGD(nw.Constant(1.0)), 20, "1/(ML)"),
        (nw.GradientTable(nw.Constant(1.0)), 20, "1/(ML)"),
        (nw.RescaledASGD(nw.Constant(1.0)), 20, "1/(ML)"),
        (nw.MinibatchSGD(nw.Constant(1.0)), 1, "1/L"),
        (nw.FedBuff(nw.Constant(1.0), buffer=5), 4, "1/(4·L)"),
        (nw.FedBuff(nw.Constant(1.0), buffer=50), 1, "1/L"),
        (nw.DelayedNesterov(nw.Constant(1.0), every=2, beta=0.9), 100, "1/(100·L)"),
        (nw.DelayedNesterov(nw.Constant(1.0), every=100, beta=0.9), 20, "1/(ML)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nw.Method) else "",
)
def test_the_default_stepsize_goes_by_how_old_gradients_are(method, divisor, words):
    size, text = default_stepsize(method, 8.0, 20)
    assert (size, text) == (pytest.approx(4.0 / divisor), words)


def test_options_come_from_a_file_and_the_command_line_goes_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        'batch-size = 4\n[simulate]\nsteps = 50\nstepsize = 0.1\nspeeds = "1,2"\n[race]\nworkers = 3\n'
    )
    result = RUNNER.invoke(app, ["simulate", "--config", "mine.toml", "--steps", "70", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["stats"]["steps"] == 70
    asked = json.loads((tmp_path / "runs" / "simulate-1" / "config.json").read_text())["labels"]["command"]
    assert (asked["batch_size"], asked["stepsize"], asked["config"]) == (4, 0.1, "mine.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step = 3", "nowait simulate has no option 'step'; did you mean 'steps'?"),
        ("[simulate]\nbatchsize = 3", "has no option 'batchsize'; did you mean 'batch-size'?"),
        ("steps = = 3", "mine.toml is not a TOML file"),
        ("colour = 'red'", "has no option 'colour'"),
        ("[simulat]\nsteps = 3", "there is no command 'simulat'; did you mean 'simulate'?"),
        ("steps = true", "mine.toml: steps must be a number or a text, got True"),
        ("[simulate]\nsteps = {a = 1}", "steps must be a number or a text"),
    ],
    ids=str,
)
def test_a_wrong_file_of_options_is_told_in_a_line(text, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(text)
    code, printed = run_main(monkeypatch, capsys, "simulate", "--config", "mine.toml")
    assert code == 2
    assert message in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate"], "say when the run ends: --steps, --gradients, --seconds, --target-loss or --target"),
        (["train"], "say when the run ends"),
        (["train", "--steps", "3", "--slowdown", "0:3"], "--slowdown must be written like 0=100,3=2"),
        (["train", "--steps", "3", "--method", "odd"], "there is no method 'odd'"),
        (["simulate", "--steps", "3", "--config", "nowhere.toml"], "there is no file nowhere.toml"),
        (["replay", "nowhere"], "there is no folder nowhere"),
        (["resume", "nowhere"], "there is no folder nowhere"),
        (["report", "nowhere"], "there is no folder nowhere"),
        (["race", "--address", "auto"], "--address is for --engine ray, not for --engine processes"),
        (
            ["train", "--steps", "3", "--workers", "2", "--most-workers", "4", "--stepsize", "0.1"],
            "--most-workers is for --engine ray, not for --engine processes",
        ),
        (["race", "--engine", "odd"], "engine must be one of processes, simulate, ray, got 'odd'"),
        (["race", "--native", "--engine", "simulate"], "--native means real delays"),
        (["race", "--method", "odd"], "there is no method 'odd'"),
        (["race", "--method", "fedbuff:buffer=2", "--method", "fedbuff:buffer=2"], "--method has one of them twice"),
        (["race", "--method", "ringmaster:max_delay=-3"], "max_delay must be an integer of at least 1"),
        (["simulate", "--steps", "3", "--folder", "."], ". exists: choose another --folder"),
        (["simulate", "--steps", "3", "--config", "."], ". is a folder, not a TOML file"),
        (["simulate", "nofile", "--steps", "3"], "--problem: there is no file nofile"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_run_is_told_in_a_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, printed = run_main(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in printed.err


def test_lists_in_a_file_of_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    race = 'method = ["fedbuff:buffer=2"]\nengine = "simulate"\nquick = true\n'
    race += f"workers = 3\ngradients = 100\nbatch-size = 4\nproblem = '{DATA}'\n"
    text = f"[race]\n{race}"
    (tmp_path / "mine.toml").write_text(text + "[simulate]\nspeeds = [1, 2]\nsteps = 20\nstepsize = 0.1\n")
    raced = RUNNER.invoke(app, ["race", "--config", "mine.toml", "--json"])
    assert raced.exit_code == 0, raced.output
    assert json.loads(raced.stdout)["rows"][-1]["method"] == "fedbuff:buffer=2"
    assert RUNNER.invoke(app, ["simulate", "--config", "mine.toml"]).exit_code == 0


def test_runs_of_a_race_replay_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RUNNER.invoke(app, [*SIMULATED, "--folder", "race", "--seeds", "2"]).exit_code == 0
    again = RUNNER.invoke(app, ["replay", "race/minibatch-sgd-seed-1"])
    assert again.exit_code == 0, again.output
    reported = RUNNER.invoke(app, ["report", ".", "--out", "all.html"])
    assert reported.exit_code == 0, reported.output
    assert "minibatch-sgd-seed" not in (tmp_path / "all.html").read_text().split("Configuration")[0]


BROKEN = """
import numpy as np

class Mine:
    dimension = 2
    def initial(self): return np.zeros(2)
    def gradient(self, point, sample): return {}["missing"]
    def loss(self, point): return 0.0

def make(): return Mine()
"""


def test_an_error_in_the_users_code_is_told_with_its_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_problem.py").write_text(BROKEN)
    code, printed = run_main(
        monkeypatch, capsys, "simulate", "broken_problem.py:make", "--steps", "3", "--stepsize", "1"
    )
    assert code == 1
    settings, error = printed.err.splitlines()
    assert settings == "No --update given: using plain SGD."
    assert error.endswith("broken_problem.py:7 in gradient: KeyError: 'missing'")


def test_a_sweep_in_which_everything_diverges_is_a_result(tmp_path):
    options = ["--stepsizes", "1e9,1e10", "--folder", str(tmp_path / "sweep")]
    result = RUNNER.invoke(app, [*SMALL_SWEEP, *options])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "sweep" / "sweep.png").exists()


@pytest.mark.parametrize(("text", "given"), [("9100", 9100), ("0.0.0.0:9100", "0.0.0.0:9100")])
def test_train_and_resume_pass_the_metrics_port_on(text, given, monkeypatch, mine, tmp_path):
    run = nw.simulate(
        nw.problems.NoisyQuadratic(2), nw.AsynchronousSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0]), steps=3
    )
    ports = []

    def remember(*_, metrics_port=None, **options):
        ports.append(metrics_port)
        return run

    monkeypatch.setattr(nw, "train", remember)
    monkeypatch.setattr(nw, "resume", remember)
    run.save(tmp_path / "run")
    assert RUNNER.invoke(app, ["train", mine, "--steps", "3", "--metrics-port", text]).exit_code == 0
    resumed = ["resume", str(tmp_path / "run"), "--problem", mine, "--steps", "9", "--metrics-port", text]
    assert RUNNER.invoke(app, resumed).exit_code == 0
    assert ports == [given, given]
