"""The theorems compared with measurements: the table, and that violations are detected."""

import dataclasses
import importlib
import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app
from nowait.core import Stepsize
from nowait.studies import bias
from nowait.studies.certified import CertifiedRow, Trial
from nowait.studies.certify import HARD, Certificate, MutantRow
from nowait.studies.hard_instances import ORDERS, hard_instances, stepsize_sum
from nowait.studies.mutants import MUTANTS
from nowait.studies.patterns import PATTERNS
from nowait.theory import LemmaCheck
from nowait.theory.lemmas import Replayed
from nowait.theory.theorems import THEOREMS

RUNNER = CliRunner()
certify_module = importlib.import_module("nowait.studies.certify")
hard_module = importlib.import_module("nowait.studies.hard_instances")


@pytest.fixture
def certificate():
    return nw.certify(steps=300, seeds=3, workers=4, progress=False)


@pytest.fixture
def with_mistakes():
    """The short form of ``nowait certify --mutants``: the hard instances only."""
    return nw.certify(patterns=[HARD], steps=600, seeds=3, workers=4, mutants=True, progress=False)


def every_theorem_holds_under_every_pattern(certificate):
    assert {row.setting for row in certificate.rows} == set(THEOREMS)
    assert {row.pattern for row in certificate.rows} == set(PATTERNS) | set(ORDERS)
    assert {row.verdict for row in certificate.rows} <= {"holds", "open"}
    assert sum(row.verdict == "open" for row in certificate.rows) <= 2, "noisy rows with few seeds"
    assert not any(row.lemmas_broken for row in certificate.rows)
    assert certificate.holds


def every_row_has_an_error_in_its_interval_below_its_guarantee(certificate):
    for row in certificate.rows:
        assert 0 <= row.low <= row.mean <= row.high
        assert row.mean < row.given_delays * (1 + 1e-9) <= row.sharpened * (1 + 1e-9)
        assert row.sharpened <= row.guarantee
        assert row.ratio == row.given_delays / row.mean


def the_patterns_have_the_delays_they_are_named_for(certificate):
    longest = {row.pattern: row.longest_delay for row in certificate.rows}
    assert longest["equal"] == 4
    assert longest["straggler"] > 200
    assert min(longest["pareto"], longest["time-varying"], longest["adversarial"]) > 20


def the_hard_instances_come_close_to_their_bounds(with_mistakes):
    close = {(row.theorem[8:], row.problem, row.pattern): row.ratio for row in with_mistakes.rows}
    assert close["3.1", "Huber", "alternating"] < 1.1
    assert close["3.1", "Huber", "slow, then alone"] < 1.1
    assert max(close["2", "linear", "alternating"], close["3.3", "linear", "alternating"]) < 1.8
    assert close["4", "one alone", "alone"] < 2.0
    assert close["3.2", "curved", "alternating"] < 5
    assert close["1", "coin", "alternating"] < 4


def test_the_noisy_instance_comes_close_to_its_bound():
    noisy = hard_instances("convex", 4, 300)[-1]
    trial = Trial(noisy.name, noisy.problem, noisy.order, noisy.speeds, noisy.prescription)
    row = trial.row([trial.measured(trial.run(seed), seed) for seed in range(200)])
    assert 1.5 < row.ratio < 2.25
    assert row.could_fail


def every_planted_mistake_is_found(with_mistakes):
    assert [row.mutant for row in with_mistakes.mutants] == [mutant.name for mutant in MUTANTS]
    for row in with_mistakes.mutants:
        assert row.is_caught, row.mutant
        assert set(row.found.values()) <= {"bound", "checks", "missed", "–"}


def mistakes_are_found_by_bounds_alone(with_mistakes):
    by_bound = {row.mutant: row.count("bound") for row in with_mistakes.mutants}
    assert by_bound["stepsizes × 1e-9"] >= 4, "a method that never moves"
    assert by_bound["x_0 as the answer"] >= 3
    assert by_bound["equal weights"] >= 1
    assert by_bound["sign of the exponent"] >= 1


def test_a_mistake_that_no_row_finds_fails_the_certificate():
    missed = MutantRow("subtle", {"3.1 Huber, alternating": "missed", "1 coin, alternating": "–"})
    assert not missed.is_caught
    assert not Certificate([], [], 4, 100, 2, [missed]).holds


def a_method_that_never_moves_fails_most_rows(certificate):
    assert sum(row.could_fail for row in certificate.rows) > 0.4 * len(certificate.rows)


def test_every_theorem_holds(certificate):
    """One test, so that the runs are made once."""
    every_theorem_holds_under_every_pattern(certificate)
    every_row_has_an_error_in_its_interval_below_its_guarantee(certificate)
    the_patterns_have_the_delays_they_are_named_for(certificate)
    a_method_that_never_moves_fails_most_rows(certificate)


def test_planted_mistakes_are_found(with_mistakes):
    """One test, so that the runs are made once."""
    the_hard_instances_come_close_to_their_bounds(with_mistakes)
    every_planted_mistake_is_found(with_mistakes)
    mistakes_are_found_by_bounds_alone(with_mistakes)


def twice_the_cut(self, delay, num_workers, step):
    return self.gamma * np.minimum(1.0, 2 * (self.cut or num_workers) / delay)


def the_cut_one_step_late(self, delay, num_workers, step):
    return self.gamma * np.minimum(1.0, (self.cut or num_workers) / np.maximum(1, delay - 1))


def no_cut(self, delay, num_workers, step):
    return self.gamma + 0.0 * delay


@pytest.mark.parametrize("wrong", [twice_the_cut, the_cut_one_step_late, no_cut])
def test_a_mistake_in_the_library_s_own_rule_is_found(monkeypatch, wrong):
    """The runs and the rule they are compared with have the same mistake; the paper's formula has not."""
    monkeypatch.setattr(nw.DelayAdaptive, "__call__", wrong)
    monkeypatch.setattr(nw.DelayAdaptive, "at", Stepsize.at)
    found = nw.certify(settings=["convex"], patterns=[HARD, "straggler"], steps=300, seeds=2, progress=False)
    assert "the paper's stepsizes" in found.rows[0].lemmas_broken
    assert not found.holds


@pytest.mark.parametrize("setting", THEOREMS)
def test_a_mistake_in_what_is_prescribed_is_found(monkeypatch, setting):
    def for_one_worker_more(*arguments, workers, steps):
        p = nw.theory.prescribe(*arguments, workers=workers + 1, steps=steps)
        return dataclasses.replace(p, workers=workers)

    monkeypatch.setattr(hard_module, "prescribe", for_one_worker_more)
    found = nw.certify(settings=[setting], patterns=[HARD], steps=300, seeds=2, progress=False)
    assert "the paper's stepsizes" in found.rows[0].lemmas_broken


def test_an_average_with_the_wrong_mu_is_found(monkeypatch):
    def with_mu(*arguments, **options):
        p = nw.theory.prescribe(*arguments, **options)
        return dataclasses.replace(p, output=nw.StronglyConvexAverage(p.constants.mu))

    monkeypatch.setattr(hard_module, "prescribe", with_mu)
    found = nw.certify(settings=["strongly-convex"], patterns=[HARD], steps=300, seeds=2, progress=False)
    assert found.rows[0].lemmas_broken == ("the paper's output",)


@pytest.mark.parametrize("order", ORDERS)
def test_the_sum_of_the_stepsizes_of_an_order_is_that_of_its_run(order):
    arrivals = ORDERS[order](4, 100)
    hard = hard_instances("convex", 4, 100)[0]
    rule = nw.DelayAdaptive(0.1)
    run = nw.simulate(hard.problem, nw.AsynchronousSGD(rule), nw.speeds.Adversary(arrivals, workers=4), steps=100)
    again = Replayed(run.trace, hard.problem).order
    assert stepsize_sum(arrivals, 4, 0.1) == pytest.approx(again.of_points(again.final_stepsizes(rule)).sum())


def test_delays_that_depend_on_the_data_bias_what_looks_at_delays():
    """Another run of the same experiment had 0.006, −0.214 and −0.408."""
    constant, adaptive, dropped = (row.mean for row in bias.data_dependent_delays(0, 20_000))
    assert abs(constant) < 0.05
    assert adaptive == pytest.approx(-0.21, abs=0.04)
    assert dropped == pytest.approx(-0.41, abs=0.04)


def a_row(mean, low, high, bound, lemmas=()):
    return CertifiedRow(
        "Theorem 1", "convex", "p", "equal", 4, mean, low, high, 3 * bound, 2 * bound, bound, 5.0, lemmas
    )


@pytest.mark.parametrize(
    ("row", "verdict", "holds"),
    [
        (a_row(1.0, 0.9, 1.1, bound=2.0), "holds", True),
        (a_row(3.0, 2.5, 3.5, bound=2.0), "violated", False),
        (a_row(1.9, 1.7, 2.1, bound=2.0), "open", True),
        (a_row(1.0, 0.9, 1.1, bound=2.0, lemmas=("Lemma 1",)), "holds", False),
        (a_row(math.inf, math.inf, math.nan, bound=2.0), "violated", False),
        (a_row(math.nan, math.nan, math.nan, bound=2.0), "violated", False),
    ],
    ids=str,
)
def test_the_verdict(row, verdict, holds):
    assert row.verdict == verdict
    assert Certificate([row], [], 4, 100, 2).holds == holds


@pytest.mark.parametrize(("count", "words"), [(1, "1 row is open"), (2, "2 rows are open")])
def test_the_command_says_how_many_rows_are_open(monkeypatch, count, words):
    rows = [a_row(1.9, 1.7, 2.1, bound=2.0)] * count
    monkeypatch.setattr("nowait.cli.certify.certify", lambda **_: Certificate(rows, [], 4, 100, 2))
    result = RUNNER.invoke(app, SMALL, env={"COLUMNS": "160"})
    assert f"{words}: the bound lies inside the error's interval" in result.output


def test_the_command_names_a_mistake_that_no_row_finds(monkeypatch):
    missed = Certificate([], [], 4, 100, 2, [MutantRow("subtle", {"3.1 Huber, alternating": "missed"})])
    monkeypatch.setattr("nowait.cli.certify.certify", lambda **_: missed)
    result = RUNNER.invoke(app, [*SMALL, "--mutants"], env={"COLUMNS": "160"})
    assert result.exit_code == 1
    assert "No row found these planted mistakes: subtle." in result.output


SMALL = ["certify", "--setting", "convex", "--pattern", "equal", "--steps", "100", "--seeds", "6", "--workers", "2"]


def test_the_command_prints_the_table_and_ends_well():
    result = RUNNER.invoke(app, SMALL, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for words in ("flat quadratic", "logistic", "holds", "checked on all 12 runs", "Assumption 1", "Everything holds."):
        assert words in result.output


def test_a_violated_guarantee_ends_in_a_status_that_is_not_zero(monkeypatch):
    def too_good(*arguments, **options):
        p = nw.theory.prescribe(*arguments, **options)
        tiny = dataclasses.replace(p.guarantee, optimisation=1e-9, noise=0.0, sharpened=None)
        return dataclasses.replace(p, guarantee=tiny)

    monkeypatch.setattr(certify_module, "prescribe", too_good)
    result = RUNNER.invoke(app, SMALL, env={"COLUMNS": "160"})
    assert result.exit_code == 1
    assert "violated" in result.output
    assert "VIOLATED" in result.output


def test_a_broken_lemma_ends_in_a_status_that_is_not_zero(monkeypatch):
    monkeypatch.setattr(Replayed, "checks", lambda *_, **__: [LemmaCheck("Lemma 1", 1.0, False)])
    result = RUNNER.invoke(app, [*SMALL, "--json"])
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert found["holds"] is False
    assert found["rows"][0]["lemmas_broken"] == ["Lemma 1"]


def test_json_has_the_rows():
    result = RUNNER.invoke(app, [*SMALL, "--json"])
    assert result.exit_code == 0
    found = json.loads(result.output)
    assert [row["verdict"] for row in found["rows"]] == ["holds", "holds"]
    assert {"theorem", "pattern", "mean", "low", "high", "guarantee", "ratio"} <= set(found["rows"][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": ["odd"]}, "there is no setting 'odd': choose among convex-lipschitz"),
        ({"patterns": ["odd"]}, "there is no pattern 'odd': choose among hard, equal, straggler"),
        ({"settings": []}, "settings is empty"),
        ({"settings": "convex"}, "settings must be a list of names, got 'convex'"),
        ({"settings": 3}, "settings must be a list of names, got 3"),
        ({"workers": 1}, "workers must be an integer of at least 2"),
        ({"seeds": 1}, "seeds must be an integer of at least 2"),
        ({"steps": 3}, "needs K ≥ M, got steps=3 for workers=4"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nw.certify(**options)


def test_a_figure_of_an_unknown_kind_is_refused_before_the_work(tmp_path):
    result = RUNNER.invoke(app, ["certify", "--figure", str(tmp_path / "figure.xyz")])
    assert result.exit_code == 2
    assert "--figure must end in .png, .pdf, .svg" in result.stderr


def test_the_command_counts_which_rows_find_planted_mistakes():
    options = ["--setting", "convex", "--pattern", "hard", "--steps", "200", "--seeds", "2", "--mutants"]
    result = RUNNER.invoke(app, ["certify", *options], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert "Planted mistakes: how many rows find them" in result.output
    assert "1 stepsizes × 1e-9" in result.output
    assert "3.1 Huber, slow, then alone   B c c c – c c B" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
