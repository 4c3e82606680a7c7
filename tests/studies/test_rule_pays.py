"""Where the delay-adaptive stepsize is better than a constant one: the study, its figure and its command."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import rule_pays as command
from nowait.cli.main import app
from nowait.studies import Cluster, Prescribed, Ratio, RulePays, rule_pays
from nowait.studies.rule_pays import study as study_module
from nowait.studies.rule_pays import tuned
from nowait.studies.rule_pays.prescribed import prescribed_errors
from nowait.studies.rule_pays.settings import quadratic, target
from nowait.studies.rule_pays.tuned import loss_ratio, stay_ratio, time_ratio


def small(**options):
    given = {"workers": 4, "seeds": 2, "noises": (1.0, 0.0), "clusters": (Cluster(0.0), Cluster(1.5))}
    return rule_pays(**given | {"batches": (), "steps": 50, "progress": False} | options)


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_module, "WIDE", (1.2,))
        return small()


@pytest.mark.parametrize("name", ["quadratic", "logistic regression"])
def test_prescribed_stepsizes_of_the_rule_do_not_feel_a_straggler(name):
    equal, slow = (prescribed_errors(name, factor, workers=16, steps=20_000) for factor in (1.0, 1_000.0))
    assert equal.constant == pytest.approx(equal.adaptive, rel=1e-6), "with equal workers both are the same"
    assert slow.adaptive == pytest.approx(equal.adaptive, rel=0.05)
    assert slow.constant > 100 * slow.adaptive


def test_tuned_the_rule_pays_with_wide_spreads_and_no_noise_but_not_with_noise():
    wide = Cluster(2.0)
    assert time_ratio(wide, 0.0, 16, 0) > 1.5
    assert 0.8 < time_ratio(wide, 10.0, 8, 0) < 1.2


def test_tuned_one_straggler_makes_no_difference():
    assert 0.9 < time_ratio(Cluster(0.0, 100.0), 0.0, 16, 0) < 1.1


def test_tuned_to_stay_below_the_target_the_rule_pays_too():
    assert stay_ratio(Cluster(2.0), 0.0, 16, 0) > 1.5
    assert 0.9 < stay_ratio(Cluster(0.0), 0.0, 16, 0) < 1.15


def test_losses_stay_below_the_target_after_the_last_one_above_it():
    times, above = np.arange(1.0, 6.0), 2 * target()
    assert tuned._last_above(times, np.array([above, 0.0, above, 0.0, 0.0])) == 3.0
    assert tuned._last_above(times, np.array([above, 0.0, 0.0, 0.0, above])) == 5.0, "its whole length"
    assert tuned._last_above(times, np.array([above, np.nan, 0.0, 0.0, 0.0])) == 2.0, "diverged for a while"
    padded = np.array([1.0, 2.0, np.nan, np.nan])
    assert tuned._last_above(padded, np.array([above, 0.0, np.nan, np.nan])) == 1.0, "NaN where others are longer"


def test_losses_after_the_same_time(monkeypatch):
    monkeypatch.setattr(tuned, "GRADIENTS", 4_000)
    ratio = loss_ratio(Cluster(2.0), 8, 16, 0)
    assert 0.6 < ratio < 1.0
    assert ratio == loss_ratio(Cluster(2.0), 8, 16, 0), "the same seeds give the same ratio"


def test_a_target_that_is_not_reached_is_an_error(monkeypatch):
    monkeypatch.setattr(tuned, "gradients_needed", lambda *_: 40.0)
    with pytest.raises(RuntimeError, match="did not reach the target"):
        time_ratio(Cluster(0.0), 0.0, 4, 0)


def test_the_noise_of_the_quadratic_is_as_asked():
    problem = quadratic(0.3, workers=5)
    assert problem.sigma**2 / (5 * problem.L * target()) == pytest.approx(0.3)


def test_clusters_differ_by_seed_only_if_they_are_spread():
    spread, straggler = Cluster(1.0), Cluster(0.0, 100.0)
    assert (spread.medians(4, 0) != spread.medians(4, 1)).all()
    assert straggler.medians(4, 0).tolist() == straggler.medians(4, 1).tolist() == [1, 1, 1, 100]
    assert np.std(np.log(spread.medians(10_000, 0))) == pytest.approx(1, rel=0.03)


def test_the_map_has_a_cell_for_every_noise_and_cluster(study):
    assert [(one.problem, one.cluster) for one in study.times] == [
        ("noise 1", "spread 0"),
        ("noise 1", "spread 1.5"),
        ("noise 0", "spread 0"),
        ("noise 0", "spread 1.5"),
    ]
    cell = study.time(0.0, "spread 1.5")
    assert cell is study.times[3]
    assert cell.each == tuple(time_ratio(Cluster(1.5), 0.0, 4, seed) for seed in (0, 1))
    (stays,) = study.stays
    assert (stays.problem, stays.cluster) == ("noise 0", "spread 1.2"), "only where there is little noise"
    assert stays.each == tuple(stay_ratio(Cluster(1.2), 0.0, 4, seed) for seed in (0, 1))
    assert len(study.prescribed) == 15


def test_the_middle_is_the_geometric_mean():
    ratio = Ratio("", "", (1.0, 4.0))
    assert (ratio.low, ratio.middle, ratio.high) == pytest.approx((1.0, 2.0, 4.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 1}, "workers must be an integer of at least 2"),
        ({"seeds": 0}, "seeds must be an integer of at least 1"),
        ({"steps": 0}, "steps must be an integer of at least 1"),
        ({"noises": (-1.0,)}, "noises must"),
        ({"batches": (0,)}, "batches must be an integer of at least 1"),
        ({"clusters": ("spread 1",)}, "clusters must be a nowait Cluster such as nowait.studies.Cluster"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        small(**options)


def test_the_figure_has_the_numbers_of_the_map(study):
    left, right = nw.plots.rule_pays(study).axes
    assert [text.get_text() for text in right.texts] == [f"{one.middle:.2g}" for one in study.times]
    assert len(left.lines) == 6
    with pytest.raises(TypeError, match="draws the result of"):
        nw.plots.rule_pays({})


@pytest.fixture
def quick(monkeypatch, study):
    asked = {}

    def instead(**options):
        asked.update(options)
        return study

    monkeypatch.setattr(command, "rule_pays", instead)
    return asked


def test_the_command_prints_tables_and_draws(quick, tmp_path):
    figure = tmp_path / "figure.png"
    result = CliRunner().invoke(app, ["rule-pays", "--seeds", "3", "--figure", str(figure)])
    assert result.exit_code == 0
    assert "straggler" in result.stdout
    assert "spread 1.5" in result.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert quick == {"workers": 16, "seeds": 3}


def test_the_command_writes_json(quick, study):
    result = CliRunner().invoke(app, ["rule-pays", "--quick", "--json"])
    found = json.loads(result.stdout)
    assert found["times"][0]["middle"] == pytest.approx(study.times[0].middle)
    assert (found["noises"], found["clusters"]) == ([1.0, 0.0], ["spread 0", "spread 1.5"])
    assert quick == {"workers": 16, **command.QUICK}


def test_a_quick_map_can_have_several_clusters_of_each_kind(quick):
    assert CliRunner().invoke(app, ["rule-pays", "--quick", "--seeds", "3", "--json"]).exit_code == 0
    assert quick == {"workers": 16, **command.QUICK, "seeds": 3}


def test_the_tables_fit_80_columns():
    ratios = [
        Ratio(f"straggler × {place},000", f"noise {noise}", (0.123, 123.4)) for noise in range(5) for place in range(3)
    ]
    rows = [Prescribed("logistic regression", 10_000.0, 1.23e-5, 1.23e-5)]
    found = RulePays(16, 5, 80_000, rows, (), (), ratios, ratios, ratios)
    from rich.console import Console

    console = Console(width=80, record=True)
    command._print(console, found)
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("3.90 (0.12–123)") == 45
