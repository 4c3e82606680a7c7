"""The lists of methods, stepsize rules and updates."""

import json

import pytest
from typer.testing import CliRunner

from nowait.cli import app
from nowait.cli.listings import TAKE_METHODS, TAKE_UPDATES, methods, rules, schedules, updates
from nowait.cli.methods import known_methods, parse_method
from nowait.cli.updates import UPDATES

RUNNER = CliRunner()


@pytest.mark.parametrize("command", TAKE_METHODS)
def test_the_help_lists_every_method_with_its_parameters(command):
    shown = RUNNER.invoke(app, [command, "--help"], env={"COLUMNS": "80"}).output
    for one in methods():
        assert one.signature in shown
    assert "ringmaster:max_delay,cancel_stale=false" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", TAKE_UPDATES)
def test_the_help_lists_every_update_and_schedule(command):
    shown = "".join(RUNNER.invoke(app, [command, "--help"], env={"COLUMNS": "80"}).output.split())
    for one in (*updates(), *schedules()):
        assert one.signature in shown
    assert "warmup:steps;linear:steps,final=0;cosine:steps,final=0" in shown


def test_the_list_has_all_methods_rules_and_updates():
    shown = RUNNER.invoke(app, ["methods"], env={"COLUMNS": "80"}).output
    for one in (*methods(), *rules(), *schedules()):
        assert f"  {one.signature}\n    " in shown
    for name in UPDATES:
        assert f"\n  {name}" in shown


def test_the_list_for_machines():
    found = {one["name"]: one for one in json.loads(RUNNER.invoke(app, ["methods", "--json"]).output)}
    assert set(found) == {*known_methods(), "adaptive", "constant", *UPDATES, "warmup", "linear", "cosine"}
    assert found["ringmaster"]["class"] == "RingmasterASGD"
    assert found["ringmaster"]["parameters"] == {"max_delay": None, "cancel_stale": "false"}


@pytest.mark.parametrize("name", ["ringmaster", "RingmasterASGD", "RINGMASTERASGD"])
def test_one_method_is_explained(name):
    shown = RUNNER.invoke(app, ["methods", name]).output
    assert shown.startswith("ringmaster:max_delay,cancel_stale=false (RingmasterASGD)\nRequired: max_delay.\n")
    assert "Apply every gradient up to a largest delay and drop the rest." in shown


@pytest.mark.parametrize("one", methods(), ids=lambda one: one.name)
def test_a_method_is_made_by_its_short_name_and_by_that_of_its_class_with_the_listed_defaults(one):
    required = {"batch": 4, "m": 2, "every": 3, "quorum": 2, "timeout_seconds": 1.5, "trials": 2}
    required |= {"max_norm": 1.0, "radius": 1.0, "max_delay": 8, "slack": 2}
    listed = json.loads(RUNNER.invoke(app, ["methods", one.name, "--json"]).output)[0]["parameters"]
    given = {name: required[name] if value is None else value for name, value in listed.items() if value != "…"}
    text = ",".join(f"{name}={value}" for name, value in given.items())
    assert repr(parse_method(f"{one.name}:{text}")(0.5)) == repr(parse_method(f"{one.kind.__name__}:{text}")(0.5))
