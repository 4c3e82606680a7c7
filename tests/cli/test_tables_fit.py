"""What commands print fits 80 columns, with long names and large numbers, and no number is cut."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import nowait as nw
from nowait.cli import certify, plan, race, sweep, tables, tune
from nowait.cli.layout import broken, number_table, side_by_side
from nowait.cli.listings import details, listed, methods, overview, rules, updates
from nowait.studies import Certificate, CertifiedRow
from nowait.studies.bench.result import Bench
from nowait.studies.bench.scores import Standing
from nowait.studies.bias import BiasRow
from nowait.studies.findings import RaceRow
from nowait.studies.reproduce import PAPERS
from nowait.studies.reproduce.text import _table as panel_table
from nowait.studies.reproduce.text import list_of
from nowait.theory import SpeedupRange

WIDTH = 80
LONG = "ringmaster:max_delay=1000,cancel_stale=true,stepsize=constant"


def printed(*things):
    """Return what a terminal of 80 columns shows."""
    shown = io.StringIO()
    console = Console(width=WIDTH, markup=False, file=shown)
    for thing in things:
        console.print(thing, highlight=False)
    return shown.getvalue()


def assert_fits(text):
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= WIDTH


def row(name, **others):
    """A row of a race with large numbers."""
    values = dict.fromkeys(("gradients", "steps", "seconds", "loss", "error", "steps_per_second"), 123_456_789.0)
    values |= {"delay_median": 4_321.0, "delay_mean": 1_234.5, "delay_max": 987_654.0, "dropped": 1e6}
    values |= {"diverged": False, "worse_than_start": False, "seconds_to_first": np.inf}
    return RaceRow(
        name, **values | {"predicted": 12.3, "expected": SpeedupRange(1234.5, 98765.4, 0.1), "measured": None} | others
    )


@pytest.mark.parametrize("count", [1, 3, 5, 9])
def test_a_race_of_many_methods_with_long_names(count):
    names = [f"{LONG},number={place}" for place in range(count)]
    settings = {names[0]: {"m": 1_000, "momentum": 0.97, "stepsize": 1.234e-12}}
    config = {"settings": settings}
    found = SimpleNamespace(engine="simulate", seconds=123.4, rows=[row(name) for name in names], config=config)
    text = printed(*race._tables(found, WIDTH))
    assert_fits(text)
    assert text.count("123,456,789") == 2 * count
    assert text.count("4321, 1234.5, 987,654") == count
    assert (text.count("0.97"), text.count("1.23e-12")) == (1, 1)


def test_the_race_of_three_methods_is_one_table():
    names = ["Minibatch SGD", "Asynchronous SGD, constant", "Asynchronous SGD, delay-adaptive"]
    assert len(list(side_by_side("", names, {"loss": ["0.1234"] * 3}, WIDTH))) == 1


def test_the_name_gives_way_to_numbers():
    table = number_table("", ["method"], ["a", "b", "c", "d"])
    table.add_row("Asynchronous SGD", *["1,234,567,890"] * 4)
    text = printed(table)
    assert_fits(text)
    assert text.count("1,234,567,890") == 4


def test_names_are_broken_after_commas_and_colons():
    assert broken("rennala:batch=16,cancel=false", 16) == "rennala:\nbatch=16,\ncancel=false"
    assert broken("Asynchronous SGD", 20) == "Asynchronous SGD"


def test_certify():
    rows = [
        CertifiedRow(
            "Theorem 3.2",
            "strongly-convex",
            problem,
            "slow, then alone",
            longest_delay=123_456,
            mean=1e-10,
            low=0.0,
            high=2e-10,
            guarantee=1e5,
            sharpened=1e4,
            given_delays=1e3,
            start=1e6,
            lemmas_broken=broken,
        )
        for problem in ("nonconvex logistic", "quadratic")
        for broken in ((), ("Lemma 1", "delay identity"))
    ]
    found = Certificate(rows, [BiasRow("delay-adaptive stepsize", -0.235)], 8, 2_000, 16)
    assert_fits(certify._table(found))
    text = printed(certify._table(found), certify._bias_table(found))
    assert_fits(text)
    assert text.count("1.00e-10 ± 1e-10") == 4
    assert text.count("broken: Lemma 1, delay identity") == 2


def test_plan():
    numbers = {"stepsize": 1.234e-12, "seconds": 123_400.0, "low": 111_100.0, "high": 155_500.0, "gradients": 1e9}
    one = SimpleNamespace(method=f"{LONG}, the 3 fastest of 4", times=(1.0,) * 36, **numbers)
    late = SimpleNamespace(method="Minibatch SGD", seconds=np.inf)
    advice = SimpleNamespace(target_loss=0.1, simulated=[one, late], minibatch=late, choice=one, budget_seconds=1e6)
    text = printed(plan._table(advice))
    assert_fits(text)
    for number in ("1.23e-12", "1.234e+05", "1,000,000,000", "over 1e+06", "1.11e+05 –", "36 seeds"):
        assert number in text
    predicted = SimpleNamespace(predicted={"Minibatch SGD": 3.0, LONG: 1.0})
    assert_fits(printed(plan._predictions(predicted)))


@pytest.mark.parametrize("momentum", [None, 0.97])
def test_tune(momentum):
    trial = SimpleNamespace(
        momentum=momentum,
        stepsize=1.234e-12,
        value=123_400.0,
        diverged=False,
        seconds_to_target=1e5,
        steps=10**9,
        mean_delay=12_345.6,
    )
    found = SimpleNamespace(
        monitor=SimpleNamespace(name="validation accuracy of the second head"),
        trials=[trial],
        best=trial,
        momentum=momentum,
        diverged=False,
    )
    text = printed(tune._table(found))
    assert_fits(text)
    assert "1,000,000,000" in text


def test_sweep():
    shape = (2, 3)
    found = SimpleNamespace(
        stepsizes=np.array([1.234e-12, 1.0]),
        final=np.full(shape, 123_400.0),
        diverged=np.zeros(shape, dtype=bool),
        best_place=1,
        seeds=range(3),
    )
    assert_fits(printed(sweep._table(found)))


def test_the_papers_tables():
    seconds = [1.0, 1.0, 10.0]
    constants = nw.theory.Constants(L=1.0, sigma=1.0, B=1.0, Delta=0.5)
    first = nw.theory.table_1(constants, workers=3, steps=10**9, max_delay=10**6)
    second = nw.theory.table_2(seconds, budget_seconds=1e9)
    assert_fits(printed(tables._table_1(first, 10**9), tables._table_2(second, 1e9)))


def test_bench(monkeypatch):
    name = "a/long/path/to/a/file/with/methods.py:AMethodWithALongName"
    monkeypatch.setattr(Bench, "scores", SimpleNamespace(columns=range(40)))
    monkeypatch.setattr(Bench, "standings", lambda _: [Standing(name, 0.123, 12.3, 12, 34, 36)])
    text = str(Bench({}, (), ()))
    assert_fits(text)
    assert name in text


def test_reproductions():
    curve = SimpleNamespace(
        entry="asynchronous SGD, delay-adaptive",
        variant="a window of 1,000 gradients",
        stepsize=0.123,
        at_the_end=True,
        final=1.23e-10,
        steps=123_456_789,
        longest_delay=123_456,
    )
    assert_fits(panel_table("a panel", [curve]))
    assert_fits(list_of(PAPERS.values()))


def test_the_listing_of_methods():
    assert_fits(overview(WIDTH).replace("…", ""))
    for one in (*methods(), *rules(), *updates()):
        assert one.name in overview(WIDTH)
        assert max(map(len, details(listed(one.name), WIDTH).splitlines())) <= 130, "formulas are not broken"
