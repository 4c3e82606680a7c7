"""Robustness of the run folder: damage is detected, links are not followed, foreign files are kept."""

import dataclasses
import json
import math
import os
import random
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import nowait as nw
from nowait.core import GradientArrived
from nowait.core.problem import Evaluation
from nowait.core.server import Server
from nowait.engines.keeper import Keeper, checkpoint_of
from nowait.recording import HistoryRecorder, TraceRecorder
from nowait.recording.best import BestFile
from nowait.recording.check import check_folder
from nowait.recording.checkpoints import CheckpointFolder, params_in
from nowait.recording.errors import DamagedFileError
from nowait.recording.files import replace_file, sealed, vector_checksum, write_json
from nowait.recording.folder import RunFolder
from nowait.recording.identity import EarlierVersionError, OtherRunError, run_in
from nowait.recording.metrics import write_metrics
from nowait.recording.monitor import Monitor
from nowait.recording.run import Run, Stats, read_config

METHOD = nw.FedBuff(nw.Constant(0.1), buffer=3)
RUN, OTHER = "0123456789abcdef", "fedcba9876543210"


class Scripted:
    """A server with two workers that is driven event by event and recorded in a folder, without processes."""

    def __init__(self, path, keep=3, size=4, every=2, checkpoint=None, folder=None, *, run=RUN):
        self.recorder = TraceRecorder([0, 1], "full", chunk_rows=8)
        initial = np.zeros(size) if checkpoint is None else checkpoint.state.params
        workers = [0, 1] if checkpoint is None else checkpoint.state.workers
        self.server = Server(METHOD, initial, workers, update=nw.Momentum(0.5), log=self.recorder)
        self.history = HistoryRecorder() if checkpoint is None else checkpoint.history
        if checkpoint is None:
            state = self.server.initial_state()
            folder = RunFolder.create(
                path,
                {"run": run, "seed": 7, "method": {"type": "FedBuff"}},
                keep,
                self.recorder,
                lambda recorder: checkpoint_of(state, recorder, [0, 1], HistoryRecorder()),
            )
        else:
            folder.rewind(checkpoint, self.recorder)
        self.folder, self.keeper = folder, Keeper(folder, every=every)
        folder.begin()
        fresh = checkpoint is None or checkpoint.is_start
        self._take(self.server.start() if fresh else self.server.resume(checkpoint.state))
        self.keeper.plan(self.server)

    def _take(self, commands):
        self.tickets = [command.ticket for command in commands]

    def run(self, steps, loss=lambda step: 1.0 / (1 + step)):
        """Send gradients that depend only on the ticket until the server has made ``steps`` steps."""
        while self.server.steps < steps:
            ticket = self.tickets.pop(0)
            gradient = np.full(self.server.params.shape, 1.0 + ticket.job % 3 + ticket.worker)
            before = self.server.steps
            event = GradientArrived(ticket, gradient, self.server.now + 1.0)
            self.tickets += [command.ticket for command in self.server.handle(event)]
            if self.server.steps != before:
                self._evaluate(loss)
            if self.keeper.is_due(self.server):
                self.keeper.checkpoint(self.server, self.recorder, self.history, in_background=True)
        return self

    def _evaluate(self, loss):
        entry = (self.server.steps, self.server.counts.gradients, self.server.now, loss(self.server.steps))
        self.history.add(*entry)
        self.folder.evaluated(*entry)

    def finish(self):
        self.keeper.checkpoint(self.server, self.recorder, self.history, in_background=False)
        self.recorder.finish(self.server.now, 1.0)
        stats = Stats(self.server.steps, 0, 0, 0, 0, 0, 0, 1.0, 1.0, np.array([0.5, 0.5]), "scripted", False)
        trace = self.recorder.trace(self.server.now, 1.0)
        run = Run(
            self.server.params.copy(),
            self.server.params.copy(),
            trace,
            self.history.history(),
            stats,
            {"run": self.folder.run, "a": 1},
        )
        self.folder.finish(run)
        self.keeper.close()
        return run


def resumed(path):
    """Resume a folder, as ``nw.resume`` does."""
    folder = RunFolder(path, keep=3, run=run_in(read_config(path), path))
    folder.lock()
    try:
        return Scripted(path, checkpoint=folder.latest(), folder=folder)
    except BaseException:
        folder.close()
        raise


def unfinished(path, steps=9):
    """Return a folder as a crash leaves it."""
    scripted = Scripted(path).run(steps)
    scripted.folder.close()
    return scripted


def files_of(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_a_trace_has_the_checksums_of_params_at_checkpoints_also_after_a_resume(tmp_path):
    """At step 9 the checkpoint of step 8 is the last; the trace after it is cut, and begins with its checksum again."""
    unfinished(tmp_path / "run")
    run = resumed(tmp_path / "run").run(11).finish()
    checksums = nw.Trace.load(tmp_path / "run" / "trace.rows").checksums
    assert list(checksums) == [2, 4, 6, 8, 10, 11]
    assert checksums == run.trace.checksums
    for step in (8, 10, 11):
        params = params_in(tmp_path / "run" / "checkpoints" / f"step_{step}")
        assert checksums[step] == vector_checksum(params)


# Files of two runs


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """Two unfinished runs of the same problem and method, with what each ends at if it is resumed from a checkpoint.

    Their gradients arrive in another order, so that their params differ.
    """
    folder = tmp_path_factory.mktemp("twins")
    runs = {}
    for name, run in (("own", RUN), ("other", OTHER)):
        (folder / name).mkdir()
        scripted = Scripted(folder / name / "run", run=run)
        scripted.tickets.sort(key=lambda ticket: ticket.worker, reverse=run == OTHER)
        scripted.run(9).folder.close()
        runs[name] = folder / name / "run", results_from_each_checkpoint(folder / name)
    assert not np.array_equal(runs["own"][1][8], runs["other"][1][8])
    return runs


MIXED = [
    "config.json",
    "trace.rows",
    "metrics.jsonl",
    "checkpoints/step_8/state.json",
    "checkpoints/step_8/state.safetensors",
    "checkpoints/step_6",
]


def replaced(target, source, name):
    """Replace a file or checkpoint of one folder by that of another."""
    if (source / name).is_dir():
        shutil.rmtree(target / name)
        shutil.copytree(source / name, target / name)
    else:
        shutil.copyfile(source / name, target / name)


@pytest.mark.parametrize("number", range(1, 1 << len(MIXED)))
def test_files_of_two_runs_are_refused_or_change_nothing(number, twins, tmp_path):
    """Every mixture of the files of two crashed runs: refused in one sentence, or the result of one of them."""
    names = [name for place, name in enumerate(MIXED) if number >> place & 1]
    (own, expected), (other, expected_of_other) = twins["own"], twins["other"]
    shutil.copytree(own, tmp_path / "run")
    for name in names:
        replaced(tmp_path / "run", other, name)
    check = check_folder(tmp_path / "run")
    try:
        run = resumed(tmp_path / "run")
    except OtherRunError as error:
        refusal = str(error)
        assert "\n" not in refusal
        assert RUN in refusal
        assert OTHER in refusal
        assert not check.whole
        return
    step = run.server.steps
    run.run(20).folder.close()
    whole = expected_of_other if "config.json" in names else expected
    assert np.array_equal(run.server.params, whole[step])


@pytest.mark.parametrize("name", ["config.json", "trace.rows", "metrics.jsonl", "stats.json"])
def test_a_finished_run_with_a_file_of_another_is_refused(name, tmp_path):
    for run, folder in ((RUN, "own"), (OTHER, "other")):
        Scripted(tmp_path / folder, run=run).run(9).finish()
    replaced(tmp_path / "own", tmp_path / "other", name)
    file = "stats.json" if name == "config.json" else name
    with pytest.raises(
        OtherRunError, match=rf"own/{file} is of run \w+, but config.json of that folder is of run \w+: "
    ):
        nw.load(tmp_path / "own")
    check = check_folder(tmp_path / "own")
    assert not check.whole
    assert check.summary == "The run can neither be read nor resumed: it has files of different runs."


def test_a_folder_without_an_id_is_of_an_earlier_version_not_damaged(tmp_path):
    unfinished(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    entries = json.loads(path.read_text())
    write_json(path, sealed({name: value for name, value in entries.items() if name not in ("run", "checksum")}))
    for read in (check_folder, lambda folder: nw.resume(folder, nw.problems.NoisyQuadratic(4))):
        with pytest.raises(EarlierVersionError, match="was written by an earlier version of nowait"):
            read(tmp_path / "run")


def test_a_trace_of_another_history_of_the_same_run_is_noticed(tmp_path, caplog):
    """A run and its copy are resumed from step 6 and go on differently; then the trace of the copy is put back."""
    unfinished(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_8")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for name in ("run", "copy"):
        again = resumed(tmp_path / name)
        again.tickets.sort(key=lambda ticket: ticket.worker, reverse=name == "copy")
        again.run(9).folder.close()
    own, other = ((tmp_path / name / "trace.rows") for name in ("run", "copy"))
    assert own.stat().st_size == other.stat().st_size
    assert own.read_bytes() != other.read_bytes()
    replaced(tmp_path / "run", tmp_path / "copy", "trace.rows")
    assert resumed(tmp_path / "run").server.steps == 6
    assert "before the checkpoint of step 8 it has another history of the run" in caplog.text


def test_losses_of_another_history_of_the_same_run_are_noticed(tmp_path, caplog):
    unfinished(tmp_path / "run")
    path, losses = tmp_path / "run" / "metrics.jsonl", HistoryRecorder()
    for step in range(1, 10):
        losses.add(step, step, float(step), 0.5)
    write_metrics(path, RUN, losses.history())
    assert resumed(tmp_path / "run").server.steps == 8
    assert (
        "metrics.jsonl is damaged: the losses before step 8 are not those that the checkpoint was made" in caplog.text
    )


def test_the_best_params_of_another_run_are_refused(tmp_path):
    unfinished(tmp_path / "run")
    best = BestFile(tmp_path / "run" / "best.safetensors", Monitor.of("accuracy"), OTHER)
    best.offer(40, Evaluation(0.5, {"accuracy": 0.75}), np.ones(3), None)
    with pytest.raises(OtherRunError, match=f"best.safetensors is of run {OTHER}"):
        resumed(tmp_path / "run")
    assert "best.safetensors" in [file.name for file in check_folder(tmp_path / "run").files if not file.whole]


def test_a_run_that_is_saved_again_keeps_its_id_and_others_get_new_ones(tmp_path):
    run = nw.simulate(nw.problems.NoisyQuadratic(3), METHOD, nw.speeds.Fixed([1.0, 2.0]), steps=4)
    first, second = (nw.load(run.save(tmp_path / name)) for name in ("first", "second"))
    assert "run" not in run.config
    assert first.config["run"] == first.trace.run != second.config["run"]
    assert nw.load(first.save(tmp_path / "third")).config["run"] == first.config["run"]


@pytest.mark.parametrize("change", [Path.unlink, lambda path: replace_file(path, b"mine")], ids=["deleted", "replaced"])
@pytest.mark.parametrize("during", [True, False], ids=["before a checkpoint", "before the end"])
def test_a_trace_that_disappears_during_the_run_is_written_again(change, during, tmp_path, caplog):
    scripted = Scripted(tmp_path / "run").run(5)
    change(tmp_path / "run" / "trace.rows")
    if during:
        scripted.run(7)
        assert check_folder(tmp_path / "run").summary == "The run can be resumed from step 6."
    run = scripted.finish()
    assert caplog.text.count("trace.rows was deleted or replaced while the run writes it") == 1
    loaded = nw.load(tmp_path / "run")
    assert np.array_equal(loaded.trace.arrivals, run.trace.arrivals)
    assert check_folder(tmp_path / "run").whole


# Damage


def damages(data, rng):
    """Yield several kinds of damage to a file."""
    place = rng.randrange(len(data)) if data else 0
    yield "flipped", data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :] if data else b"x"
    yield "cut", data[:place]
    yield "deleted", None
    yield "garbage", data[:place] + rng.randbytes(16) + data[place + 16 :]
    yield "longer", data + rng.randbytes(1 + rng.randrange(40))
    yield "zeros", data[:place] + bytes(len(data) - place)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """The folder of a run that is not finished, and its results from each checkpoint."""
    folder = tmp_path_factory.mktemp("crashed")
    unfinished(folder / "run")
    return folder / "run", results_from_each_checkpoint(folder)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_folder_goes_on_to_the_same_result_or_is_refused_in_one_sentence(seed, crashed, tmp_path, caplog):
    rng = random.Random(seed)
    original, expected = crashed
    name = rng.choice([file for file in files_of(original) if not file.startswith(".")])
    data = (original / name).read_bytes()
    for kind, damaged in damages(data, rng):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(original, tmp_path / "copy")
        _put(tmp_path / "copy" / name, damaged)
        caplog.clear()
        try:
            run = resumed(tmp_path / "copy")
        except (DamagedFileError, FileNotFoundError) as error:
            refusal = str(error)
            assert "\n" not in refusal, (kind, name)
            continue
        step = run.server.steps
        run.run(20).folder.close()
        assert np.array_equal(run.server.params, expected[step]), (kind, name)
        whole = step == 8 and [entry[0] for entry in run.history.entries] == list(range(1, 21))
        assert whole or "is damaged" in caplog.text, (kind, name)


def results_from_each_checkpoint(tmp_path):
    """Gradients in flight are lost with a checkpoint, so the result depends on which one a run is resumed from."""
    results = {}
    while True:
        copied = tmp_path / f"without-{len(results)}"
        shutil.copytree(tmp_path / "run", copied)
        for later in results:
            shutil.rmtree(copied / "checkpoints" / f"step_{later}")
        if not (left := checkpoint_steps(copied)):
            return results
        run = resumed(copied).run(20)
        run.folder.close()
        results[left[0]] = run.server.params.copy()
    return results


def checkpoint_steps(path):
    return CheckpointFolder(path / "checkpoints", keep=1).steps()


def _put(path, data):
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_damage_in_the_newest_checkpoint_is_named_and_the_run_goes_on_from_an_older_one(name, tmp_path, caplog):
    unfinished(tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step_8" / name
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    run = resumed(tmp_path / "run")
    assert run.server.steps == 6
    assert f"step_8/{name} is damaged" in caplog.text
    assert "resuming from the older checkpoint of step 6" in caplog.text
    assert not newest.parent.exists(), "it would be newer than what the run does next"


def test_damage_everywhere_is_one_sentence(tmp_path):
    unfinished(tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*/state.json"):
        path.write_text("{")
    with pytest.raises(DamagedFileError, match="it has no intact checkpoint to resume from"):
        resumed(tmp_path / "run")


def test_damage_early_in_the_trace_leaves_only_the_checkpoints_before_it(tmp_path, caplog):
    scripted = Scripted(tmp_path / "run", keep=100).run(9)
    scripted.folder.close()
    trace = tmp_path / "run" / "trace.rows"
    position = json.loads((tmp_path / "run" / "checkpoints" / "step_4" / "state.json").read_text())["trace"]["length"]
    data = bytearray(trace.read_bytes())
    data[position + 60] ^= 1
    trace.write_bytes(data)
    assert resumed(tmp_path / "run").server.steps == 4
    assert "trace.rows is damaged" in caplog.text


def test_a_broken_line_of_metrics_is_left_out_with_a_warning(tmp_path, caplog):
    unfinished(tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(path.read_text().replace('"step": 3', '"step": 4'))
    run = resumed(tmp_path / "run")
    assert [entry[0] for entry in run.history.entries] == [1, 2, 4, 5, 6, 7, 8]
    assert "line 3 is left out of the history" in caplog.text


def test_missing_metrics_are_noticed(tmp_path, caplog):
    unfinished(tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
    resumed(tmp_path / "run")
    assert "3 losses before step 8 are missing" in caplog.text


def test_every_flipped_byte_of_the_params_of_a_finished_run_is_noticed(tmp_path):
    unfinished(tmp_path / "run").finish()
    assert nw.load(tmp_path / "run").config == {"run": RUN, "a": 1}
    path = tmp_path / "run" / "params.safetensors"
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])
        with pytest.raises(DamagedFileError, match=r"params\.safetensors is damaged: its checksum differs"):
            nw.load(tmp_path / "run")


@pytest.mark.parametrize("name", ["stats.json", "config.json"])
def test_every_flipped_bit_of_a_json_file_is_noticed(name, tmp_path, caplog):
    unfinished(tmp_path / "run").finish()
    path = tmp_path / "run" / name
    data, whole = path.read_bytes(), nw.load(tmp_path / "run")
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x01]) + data[place + 1 :])
        caplog.clear()
        try:
            run = nw.load(tmp_path / "run")
        except ValueError as error:
            refusal = str(error)
            assert "\n" not in refusal
            continue
        same = run.config == whole.config and dataclasses.asdict(run.stats).keys() == vars(whole.stats).keys()
        assert same or "has no checksum" in caplog.text, place


def test_a_config_that_was_changed_on_purpose_is_read_without_its_checksum(tmp_path, caplog):
    unfinished(tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    values = json.loads(config.read_text())
    write_json(config, values | {"seed": 8})
    with pytest.raises(DamagedFileError, match='If you changed the file on purpose, remove its entry "checksum"'):
        read_config(tmp_path / "run")
    del values["checksum"]
    write_json(config, values | {"seed": 8})
    assert read_config(tmp_path / "run")["seed"] == 8
    assert "has no checksum" in caplog.text


def test_checksums_do_not_depend_on_the_layout_of_a_file(tmp_path):
    entries = {"run": RUN, "b": [1, 2.5], "a": {"x": None, "y": math.inf}}
    (tmp_path / "config.json").write_text(json.dumps(sealed(entries)))
    assert read_config(tmp_path) == entries


@pytest.mark.parametrize("name", ["params.safetensors", "stats.json"])
def test_damaged_results_of_a_finished_run_are_written_again(name, tmp_path, caplog):
    whole = unfinished(tmp_path / "run").finish()
    assert RunFolder(tmp_path / "run", keep=3, run=RUN).is_finished()
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[:-9] + b"?" + path.read_bytes()[-8:])
    assert not RunFolder(tmp_path / "run", keep=3, run=RUN).is_finished()
    assert f"{name} is damaged" in caplog.text
    resumed(tmp_path / "run").finish()
    assert np.array_equal(nw.load(tmp_path / "run").last, whole.last)


# nowait check


def test_check_of_a_whole_run(tmp_path):
    scripted = unfinished(tmp_path / "run")
    found = check_folder(tmp_path / "run")
    assert found.whole
    assert found.summary == "The run can be resumed from step 8."
    scripted.finish()
    found = check_folder(tmp_path / "run")
    assert found.whole
    assert found.summary == "The run can be read with nw.load."


def test_check_names_what_is_damaged(tmp_path):
    unfinished(tmp_path / "run")
    for name in ("metrics.jsonl", "config.json", "trace.rows", "checkpoints/step_8/state.safetensors"):
        path = tmp_path / "run" / name
        data = path.read_bytes()
        path.write_bytes(data[:40] + bytes([data[40] ^ 4]) + data[41:])
        found = check_folder(tmp_path / "run")
        assert not found.whole
        damaged = [file.name for file in found.files if not file.whole]
        assert damaged == [name.removesuffix("/state.safetensors")]
        path.write_bytes(data)
    with pytest.raises(FileNotFoundError, match="is not the folder of a run"):
        check_folder(tmp_path)


# Links and foreign files


def test_check_reads_the_header_of_the_best_params(tmp_path):
    unfinished(tmp_path / "run").finish()
    best = BestFile(tmp_path / "run" / "best.safetensors", Monitor.of("accuracy"), RUN)
    best.offer(40, Evaluation(0.5, {"accuracy": 0.75}), np.ones(3), None)
    [found] = [file for file in check_folder(tmp_path / "run").files if file.name == "best.safetensors"]
    assert (found.whole, found.words) == (True, "accuracy 0.75 at step 40, no checksum")
    best.path.write_bytes(b"damaged")
    [found] = [file for file in check_folder(tmp_path / "run").files if file.name == "best.safetensors"]
    assert not found.whole


def test_links_in_a_prepared_folder_are_not_followed(tmp_path):
    unfinished(tmp_path / "run")
    precious = tmp_path / "precious"
    precious.write_text("do not lose me")
    for name in (".metrics.jsonl.unfinished", ".config.json.unfinished"):
        (tmp_path / "run" / name).symlink_to(precious)
    resumed(tmp_path / "run").finish()
    assert precious.read_text() == "do not lose me"
    for name in (".lock", "trace.rows"):
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        unfinished(tmp_path / "other")
        (tmp_path / "other" / name).unlink()
        (tmp_path / "other" / name).symlink_to(precious)
        with pytest.raises(DamagedFileError, match="cannot be opened"):
            resumed(tmp_path / "other")
        assert precious.read_text() == "do not lose me"


def test_an_unfinished_name_that_is_a_link_is_replaced(tmp_path):
    (tmp_path / "precious").write_text("x")
    (tmp_path / ".file.unfinished").symlink_to(tmp_path / "precious")
    replace_file(tmp_path / "file", b"data")
    assert (tmp_path / "precious").read_text() == "x"
    assert (tmp_path / "file").read_bytes() == b"data"


def test_names_that_are_no_checkpoints_are_left_alone(tmp_path):
    scripted = Scripted(tmp_path / "run").run(3)
    folder = tmp_path / "run" / "checkpoints"
    (folder / "step_100.bak").write_text("mine")
    (folder / "step_x").mkdir()
    (folder / "step_007").mkdir()
    scripted.run(12)
    assert (folder / "step_100.bak").read_text() == "mine"
    assert (folder / "step_x").is_dir()
    assert CheckpointFolder(folder, keep=3).steps() == [12, 10, 8]


def test_a_file_of_the_user_in_an_old_checkpoint_stays(tmp_path):
    scripted = Scripted(tmp_path / "run").run(3)
    notes = tmp_path / "run" / "checkpoints" / "step_2" / "notes.txt"
    notes.write_text("mine")
    scripted.run(20)
    assert files_of(notes.parent) == ["notes.txt"]
    assert resumed_step(scripted, tmp_path / "run") == 20


def resumed_step(scripted, path):
    scripted.folder.close()
    return resumed(path).server.steps


def test_a_run_that_never_began_removes_its_own_files_and_no_others(tmp_path):
    recorder = TraceRecorder([0])
    server = Server(METHOD, np.zeros(2), 1, log=recorder)
    state = server.initial_state()
    for foreign in (False, True):
        folder = RunFolder.create(
            tmp_path / "run",
            {"run": RUN},
            3,
            TraceRecorder([0]),
            lambda log: checkpoint_of(state, log, [0], HistoryRecorder()),
        )
        if foreign:
            (tmp_path / "run" / "notes.txt").write_text("mine")
        folder.leave()
        assert (files_of(tmp_path / "run") if foreign else (tmp_path / "run").exists()) == (
            ["notes.txt"] if foreign else False
        )


def test_a_folder_is_never_there_without_a_checkpoint(tmp_path, monkeypatch):
    """Kill the process at each call that renames or creates a file while the folder is created."""
    for number in range(1, 100):
        path = tmp_path / f"run-{number}"
        with monkeypatch.context() as patch:
            calls = _kill_at(patch, number)
            try:
                unfinished(path, steps=0)
            except _Killed:
                calls.append("killed")
        assert not path.exists() or resumed(path).run(3).server.steps == 3
        if calls[-1] != "killed":
            return
        if not path.exists():
            unfinished(path, steps=1)
            assert files_of(path)
    pytest.fail("the folder was never completed")


class _Killed(BaseException):
    pass


def _kill_at(patch, number):
    """Simulate SIGKILL: no cleanup runs."""
    calls = []

    def wrapped(function):
        def call(*arguments, **options):
            calls.append(function.__name__)
            if len(calls) == number:
                patch.setattr(RunFolder, "leave", lambda folder: folder.close())
                raise _Killed
            return function(*arguments, **options)

        return call

    for name in ("rename", "replace", "mkdir", "open"):
        patch.setattr(os, name, wrapped(getattr(os, name)))
    return calls


# Which checkpoints are kept, and how they are written


def test_the_best_checkpoint_stays_when_a_run_diverges(tmp_path):
    scripted = Scripted(tmp_path / "run").run(20, loss=lambda step: abs(step - 6) + (math.nan if step > 12 else 0.0))
    assert scripted.folder.checkpoints.steps() == [20, 18, 16, 6]


def test_a_large_checkpoint_is_written_while_steps_go_on(tmp_path, monkeypatch):
    """The writing thread waits until six more steps are made."""
    monkeypatch.setattr("nowait.engines.keeper.BACKGROUND_BYTES", 1)
    write, gate = CheckpointFolder.write, threading.Event()

    def gated(folder, checkpoint, sync_trace):
        assert checkpoint.is_start or gate.wait(timeout=100)
        return write(folder, checkpoint, sync_trace)

    monkeypatch.setattr(CheckpointFolder, "write", gated)
    scripted = Scripted(tmp_path / "run", size=3000, every=3).run(9)
    assert scripted.keeper._pending[1].number == 3, "the version is kept until it is written"
    assert scripted.folder.checkpoints.steps() == [0]
    gate.set()
    run = scripted.finish()
    assert scripted.folder.checkpoints.steps() == [9, 3, 0]
    assert np.array_equal(
        scripted.folder.checkpoints.read(3).state.params, Scripted(tmp_path / "other", size=3000).run(3).server.params
    )
    assert all(version.references == 0 for version in scripted.server._versions.free)
    assert np.array_equal(resumed(tmp_path / "run").server.params, run.last)


def test_a_failure_to_write_in_the_background_reaches_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("nowait.engines.keeper.BACKGROUND_BYTES", 1)
    scripted = Scripted(tmp_path / "run", every=3)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CheckpointFolder, "write", full)
    with pytest.raises(OSError, match="No space left"):
        scripted.run(3).finish()
