"""Files written by older versions, whose names differ."""

import json
import zlib

import numpy as np
import pytest

import nowait as nw
from nowait.api.rebuild import rebuild
from nowait.recording import describe
from nowait.recording.files import sealed, write_json
from nowait.recording.old_names import GAMMA_WAS, with_current_names
from nowait.recording.run import read_config

PROBLEM = nw.problems.NoisyQuadratic(3)
SPEEDS = nw.speeds.Fixed([1.0, 2.0])
RULES = [
    nw.Constant(0.1),
    nw.DelayAdaptive(0.1, cut=3.0),
    nw.ExponentialDelayAdaptive(0.1, cut=2.0, rate=0.5),
    nw.PolynomialDecay(0.1, power=0.5),
    nw.HingeDecay(0.1),
    nw.Threshold(0.1, concurrency=2),
]


def old_description(description):
    """A description as the older version wrote it."""
    if isinstance(description, list):
        return [old_description(item) for item in description]
    if not isinstance(description, dict):
        return description
    former = GAMMA_WAS.get(description.get("type"), "gamma")
    return {former if key == "gamma" else key: old_description(item) for key, item in description.items()}


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_former_name_of_gamma_is_read(rule):
    method = nw.RingmasterASGD(nw.StepDecay(rule, every=7), max_delay=4)
    old = old_description(describe(method))
    assert '"gamma"' not in json.dumps(old)
    assert with_current_names(old) == describe(method)
    assert rebuild(with_current_names(old), "method") == method


def test_only_stepsize_rules_have_a_former_name():
    strength = describe(nw.DelayCompensatedSGD(0.1, strength=nw.AdaptiveStrength(largest=2.0)))
    assert with_current_names(strength) == strength


def test_strange_descriptions_are_left_as_they_are():
    deep = {"type": "Constant", "value": 0.1}
    for _ in range(100_000):
        deep = [deep]
    assert with_current_names(deep)[0] == deep[0]
    for strange in ({"type": ["Constant"], "value": 1}, {"type": "Constant", "value": 1, "gamma": 2}, {"value": 1}):
        assert with_current_names(strange) == strange


def test_a_run_saved_by_an_older_version_is_loaded(tmp_path):
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.DelayAdaptive(0.1)), SPEEDS, steps=20)
    folder = run.save(tmp_path / "run")
    stats = json.loads((folder / "stats.json").read_text())
    stats["way"] = stats.pop("engine")
    del stats["checksum"]
    write_json(folder / "stats.json", sealed(stats))
    write_json(folder / "config.json", sealed(old_description(run.config | {"run": stats["run"]})))
    assert "largest" in (folder / "config.json").read_text()

    loaded = nw.load(folder)

    assert loaded.stats.engine == run.stats.engine
    assert loaded.config == read_config(folder) == json.loads(json.dumps(run.config | {"run": stats["run"]}))


def test_a_sweep_of_an_older_version_goes_on(tmp_path):
    arguments = {"stepsizes": [0.1, 0.2], "seeds": [0], "steps": 20, "progress": False}
    method = nw.AsynchronousSGD(nw.DelayAdaptive(1.0))
    whole = nw.sweep(PROBLEM, method, SPEEDS, **arguments, folder=tmp_path)
    header = json.loads((tmp_path / "sweep.json").read_text())
    del header["checksum"]
    write_json(tmp_path / "sweep.json", sealed(header | {"config": old_description(header["config"])}))
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    rows = [json.loads(line.partition(" ")[2]) for line in lines]
    old = [{("way" if key == "engine" else key): value for key, value in row.items()} for row in rows]
    (tmp_path / "runs.jsonl").write_text("".join(with_checksum(json.dumps(row)) for row in old))

    assert nw.Sweep.load(tmp_path).engine == whole.engine == "compiled"
    again = nw.sweep(PROBLEM, method, SPEEDS, **arguments, folder=tmp_path)
    assert np.array_equal(again.curves, whole.curves)
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2, "no run was made again"


def with_checksum(text):
    return f"{zlib.crc32(text.encode()):08x} {text}\n"
