"""``config.json`` of a run that is resumed: every entry is checked, and an error is one sentence that names it."""

import contextlib
import copy
import importlib
import json
import os
import random

import pytest

import nowait as nw
from faulty import Faulty
from nowait.api.rebuild import rebuild
from nowait.api.training_plan import TrainingPlan
from nowait.engines.budget import Budget
from nowait.recording import describe

resuming = importlib.import_module("nowait.api.resume")
training = importlib.import_module("nowait.api.training")
PRINT = {"problem": "Faulty()", "params": [4, "float64"], "gradient_norm": 0.5, "gradient_direction": [0.5] * 8}
METHOD = nw.RingmasterASGD(nw.Cosine(nw.DelayAdaptive(0.1), steps=100), max_delay=4)
RESUMED = "the run would go on"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the config of a run. Nothing but the run itself is left out when it is resumed."""
    cluster = nw.RayCluster(resources_per_worker={"num_cpus": 1, "resources": {"fast": 1}}, port=5000)
    plan = TrainingPlan(
        workers=(2, 4),
        engine=cluster,
        budget=Budget(steps=10, seconds=3.0, target_loss=0.1),
        evaluate_every=5,
        seed=7,
        slowdown={1: 2.0},
        speeds=nw.speeds.Communication(nw.speeds.LogNormal([1.0, 2.0, 3.0, 4.0], sigma=0.2), down=0.1, up=[0.1] * 4),
        replace_hung=False,
        max_failures=5,
        checkpoint_every=10,
        checkpoint_seconds=1.5,
        keep_checkpoints=3,
        trace="full",
    )
    config = {name: describe(getattr(plan, name)) for name in vars(plan)}
    config |= {"method": describe(METHOD), "update": describe(nw.Proximal(nw.updates.Ball(1.0)))}
    config |= {"output": describe(nw.StronglyConvexAverage(0.1)), "labels": {"mine": 1}}
    config |= {"run": "0123456789abcdef", "fingerprint": PRINT}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(resuming, "_check_size", lambda *_: None)
    monkeypatch.setattr(resuming, "run_training", lambda _: RESUMED)
    monkeypatch.setattr(training, "connected", lambda *_: contextlib.nullcontext(4))
    return tmp_path


def config_in(folder):
    return json.loads((folder / "config.json").read_text())


def outcome(folder, text):
    """RESUMED, or the message of the error; any other error fails the test."""
    (folder / "config.json").write_bytes(text.encode() if isinstance(text, str) else text)
    try:
        return nw.resume(folder, Faulty())
    except (ValueError, FileNotFoundError) as error:
        return str(error)


def is_one_sentence(message):
    return message == RESUMED or ("\n" not in message and len(message) < 600)


def places(value, path=()):
    """The path of every entry, also of those inside entries."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def put(config, path, value):
    """A copy of the config with another value at this path."""
    damaged = copy.deepcopy(config)
    holder = damaged
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return damaged


def without(config, path):
    """A copy of the config without this entry."""
    damaged = put(config, path, None)
    holder = damaged
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return damaged


DEEP = json.loads("[" * 300 + "]" * 300)
STRANGE = [
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    float("nan"),
    "x",
    "",
    "inf",
    [],
    [1, "x"],
    {},
    {"a": None},
    {"type": None},
    {"type": ["Sgd"]},
    {"type": "Server"},
    {"type": "Sgd"},
    {"type": "Constant", "gamma": 0.1},
    {"type": "TorchOptimizer"},
    {"array": [100], "dtype": "float64", "crc32": 1},
    DEEP,
]


def test_the_config_as_it_is_can_be_resumed(folder):
    assert outcome(folder, json.dumps(config_in(folder))) == RESUMED


def test_an_entry_of_a_wrong_type_or_value_is_told_in_a_sentence_that_begins_with_config_json(folder):
    config = config_in(folder)
    for path in places(config):
        for value in STRANGE:
            message = outcome(folder, json.dumps(put(config, path, value)))
            assert is_one_sentence(message), (path, value, message)
            if message != RESUMED:
                assert message.startswith("config.json"), (path, value, message)
                assert path[0] in message, (path, value, message)


def test_a_missing_entry_is_told_in_a_sentence(folder):
    config = config_in(folder)
    for path in places(config):
        message = outcome(folder, json.dumps(without(config, path)))
        assert is_one_sentence(message), (path, message)
        optional = ("labels", "engine", "trace", "keep_best", "wire", "points_wire", "start", "audit")
        if len(path) == 1 and path[0] not in optional:
            assert f"config.json has no {path[0]}" in message


def test_several_damaged_entries_are_told_in_a_sentence(folder):
    config, chance = config_in(folder), random.Random(0)
    paths = list(places(config))
    for _ in range(500):
        damaged = config
        for path in chance.sample(paths, 3):
            if path in set(places(damaged)):
                damaged = put(damaged, path, chance.choice(STRANGE))
        assert is_one_sentence(outcome(folder, json.dumps(damaged)))


def test_damaged_bytes_are_told_in_a_sentence(folder):
    whole, chance = (folder / "config.json").read_bytes(), random.Random(0)
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        cut = bytes(damaged[: chance.randint(0, len(damaged))]) if chance.random() < 0.2 else bytes(damaged)
        assert is_one_sentence(outcome(folder, cut))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_failures", "x", "config.json, entry 'max_failures': it must be an integer of at least 0, got 'x'"),
        ("replace_hung", "no", "config.json, entry 'replace_hung': it must be true or false, got 'no'"),
        ("engine", "ray", "config.json, entry 'engine': it must hold entries by name, got 'ray'"),
        ("engine", {"colour": 1}, "config.json, entry 'engine': .*unexpected keyword argument 'colour'"),
        ("fingerprint", 3, "config.json, entry 'fingerprint': it must hold entries by name, got 3"),
        ("fingerprint", {"params": "x"}, "config.json, entry 'fingerprint': its params must be a number and a dtype"),
        ("fingerprint", PRINT | {"gradient_direction": [1.0]}, "its gradient_direction must be 8 numbers or none"),
        ("checkpoint_seconds", "soon", "config.json, entry 'checkpoint_seconds': it must be a finite number above 0"),
        ("evaluate_every", 0, "config.json, entry 'evaluate_every': it must be an integer of at least 1, got 0"),
        ("workers", 10**12, "config.json, entry 'workers': workers must be at most 4,194,304"),
        ("slowdown", {"9": 2.0}, "config.json, entry 'slowdown': slowdown names worker 9, but the workers are 0 to 3"),
        ("slowdown", {"one": 2.0}, "config.json, entry 'slowdown': "),
        ("labels", [], "config.json, entry 'labels': it must hold entries by name"),
        ("method", None, "config.json, entry 'method': it is null"),
        ("method", {"type": "Sgd"}, "config.json, entry 'method': the method must be described as a Method, got a Sgd"),
        ("budget", {"steps": "x"}, "config.json, entry 'budget': steps must be an integer of at least 1, got 'x'"),
    ],
    ids=str,
)
def test_a_wrong_entry_is_named(folder, name, value, message):
    (folder / "config.json").write_text(json.dumps(config_in(folder) | {name: value}))
    with pytest.raises(ValueError, match=message):
        nw.resume(folder, Faulty())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"config\.json is damaged: it cannot be read as JSON"),
        ("[1]", r"config\.json is damaged: it must contain a JSON object"),
        ("[" * 100_000, r"config\.json is damaged: it cannot be read as JSON"),
        ('{"seed": ' + "9" * 5_000 + "}", r"config\.json is damaged: it cannot be read as JSON"),
        (b"\xff\xfe\xff", r"config\.json is damaged: it cannot be read as JSON"),
    ],
    ids=["empty", "a list", "deep", "a long number", "no text"],
)
def test_a_file_that_is_no_config_is_told_in_a_sentence(folder, text, message):
    (folder / "config.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError, match=message):
        nw.resume(folder, Faulty())


def test_a_file_that_is_far_too_large_is_not_read(folder):
    os.truncate(folder / "config.json", 2**40)
    with pytest.raises(ValueError, match=r"has more than 16 MiB: nw.train did not write it"):
        nw.resume(folder, Faulty())


def test_a_cluster_elsewhere_is_joined_only_if_the_user_names_it(folder):
    config = config_in(folder)
    config["engine"]["address"] = "somewhere:6379"
    message = outcome(folder, json.dumps(config))
    assert "if you trust it, pass engine=nw.RayCluster(address='somewhere:6379') again" in message
    assert nw.resume(folder, Faulty(), engine=nw.RayCluster(address="somewhere:6379")) == RESUMED


@pytest.mark.parametrize(
    "name", ["Server", "sampler", "Ticket", "Faults", "Problem", "BadWorkerError", "Method", "__class__", "os.system"]
)
def test_only_parts_of_a_run_are_made_from_a_description(name):
    with pytest.raises(ValueError, match=r"not of this library|cannot be made again"):
        rebuild({"type": name}, "method")


@pytest.mark.parametrize("name", ["lr_scheduler", "swa_utils", "Optimizer.__init__", "__loader__", "SGD.step", 3, None])
def test_only_optimisers_are_taken_from_torch(name):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"torch.optim has no optimiser"):
        rebuild({"type": "TorchOptimizer", "optimizer": name, "options": {}}, "update")


def test_options_of_a_torch_optimiser_are_plain_values():
    pytest.importorskip("torch")
    described = {"type": "TorchOptimizer", "optimizer": "AdamW", "options": {"betas": [0.8, 0.9], "eps": 1e-6}}
    made = repr(rebuild(described | {"fused": True}, "update"))
    assert made == "TorchOptimizer(AdamW, betas=[0.8, 0.9], eps=1e-06)"
    for options in ({"betas": {"type": "Sgd"}}, {"betas": [[0.8]]}, [], None):
        with pytest.raises(ValueError, match="must be numbers and lists of numbers"):
            rebuild(described | {"options": options}, "update")
    with pytest.raises(ValueError, match="cannot be made again"):
        rebuild(described | {"options": {"colour": 1}}, "update")
