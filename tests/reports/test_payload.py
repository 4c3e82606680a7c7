"""The data of a report: thinned curves, histograms and shares; and the page: complete and safely escaped."""

import dataclasses
import json
import re

import numpy as np
import pytest

import nowait as nw
from nowait.recording import History
from nowait.reports import write_report
from nowait.reports.curves import curves, thin
from nowait.reports.payload import payload, summary
from nowait.reports.tables import config_tables, flat
from nowait.reports.timeline import KINDS
from nowait.reports.work import choose_workers, delay_edges

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
SPEEDS = nw.speeds.Exponential([1.0, 1.0, 2.0, 12.0])


def a_run(method=None, seed=0, **budget):
    method = method or nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    return nw.simulate(PROBLEM, method, SPEEDS, seed=seed, progress=False, **(budget or {"gradients": 500}))


def with_losses(run, losses, diverged=False):
    """Return the run with these losses at times 0, 1, 2, ..."""
    places = np.arange(len(losses))
    history = History(places, places * 10, places.astype(float), np.array(losses, dtype=float))
    return dataclasses.replace(run, history=history, stats=dataclasses.replace(run.stats, diverged=diverged))


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)[1])


@pytest.fixture(scope="module")
def run():
    return a_run()


# Curves


def test_a_short_curve_is_kept_whole():
    assert thin(np.ones(7), np.ones(7), most=10).tolist() == list(range(7))


def test_a_long_curve_keeps_its_first_its_last_and_its_extremes():
    values = np.sin(np.arange(100_000.0))
    values[31_415], values[27_182] = -5.0, 5.0
    kept = thin(values, values, most=1_000)
    assert len(kept) <= 1_000
    assert {0, 99_999, 31_415, 27_182} <= set(kept.tolist())
    assert np.all(np.diff(kept) > 0)


def test_the_curve_of_one_run_is_its_errors_on_every_axis(run):
    made = curves([run], minimum=0.25)
    for axis in ("time", "gradients", "step"):
        np.testing.assert_allclose(made[axis]["x"], getattr(run.history, axis), rtol=1e-5)
        np.testing.assert_allclose(made[axis]["middle"], run.history.loss - 0.25, rtol=1e-5)
        assert "low" not in made[axis]


def test_several_runs_give_the_median_between_the_lowest_and_the_highest(run):
    runs = [with_losses(run, [8.0, 4.0, level]) for level in (1.0, 3.0, 2.0)]
    assert curves(runs, minimum=0.0)["time"] == {
        "x": [0, 1, 2],
        "middle": [8, 4, 2],
        "low": [8, 4, 1],
        "high": [8, 4, 3],
    }


def test_between_evaluations_errors_are_straight_on_a_logarithmic_scale(run):
    coarse = with_losses(run, [16.0, 4.0, 1.0])
    fine = dataclasses.replace(
        coarse, history=History(*(np.array([0, 2]),) * 2, np.array([0.0, 2.0]), np.array([16.0, 1.0]))
    )
    assert curves([coarse, fine], minimum=0.0)["time"]["middle"] == [16, 4, 1]


def test_a_run_that_ended_keeps_its_last_error_and_one_that_diverged_has_none(run):
    long, short = with_losses(run, [4.0, 3.0, 2.0]), with_losses(run, [4.0, 1.0])
    assert curves([long, short], minimum=0.0)["time"]["low"] == [4, 1, 1]
    lost = with_losses(run, [4.0, 9.0], diverged=True)
    assert curves([long, lost], minimum=0.0)["time"]["high"] == [4, 9, None]


def test_losses_that_are_not_finite_or_below_the_minimum_break_nothing(run, tmp_path):
    odd = with_losses(run, [1.0, np.inf, np.nan, -2.0, 1e308], diverged=True)
    path = write_report({"one": odd, "several": [odd, run, odd]}, tmp_path / "odd.html", minimum=0.5)
    one, several = data_of(path)["methods"]
    assert one["curves"]["time"]["middle"] == [0.5, None, None, -2.5, 1e308]
    assert one["diverged"]
    assert len(several["curves"]["time"]["x"]) > 5


def test_a_run_without_evaluations_or_arrivals_is_reported_too(run, tmp_path):
    nothing = with_losses(run, [])
    trace = dataclasses.replace(run.trace, source=run.trace.arrivals[:0])
    [method] = data_of(write_report({"nothing": dataclasses.replace(nothing, trace=trace)}, tmp_path / "a.html"))[
        "methods"
    ]
    assert method["curves"]["time"] == {"x": [], "middle": []}
    assert sum(method["delays"]["counts"]) == 0
    assert {KINDS[kind] for kind in method["timeline"]["jobs"]["kind"]} == {"open"}


# Delays, shares, timeline


def test_histograms_count_every_arrival_once(run):
    made = payload({"one": [run], "two": [run, a_run(seed=1)]}, {}, minimum=0.0)
    one, two = made["methods"]
    assert sum(one["delays"]["counts"]) == len(run.trace)
    assert sum(two["delays"]["counts"]) == 2 * len(run.trace)
    assert np.sum(one["delays"]["by_worker"], axis=0).tolist() == one["delays"]["counts"]
    assert one["delays"]["longest"] == run.trace.delay.max() == max(one["delays"]["longest_by_worker"])


def test_bins_hold_the_delays_they_say(run):
    made = payload({"one": [run]}, {}, minimum=0.0)
    edges, counts = made["edges"], made["methods"][0]["delays"]["counts"]
    for place, count in enumerate(counts):
        assert count == np.sum((run.trace.delay >= edges[place]) & (run.trace.delay < edges[place + 1]))


@pytest.mark.parametrize("longest", [0, 1, 2, 39, 10**7])
def test_bins_begin_at_one_and_end_after_the_longest_delay(longest):
    edges = delay_edges(longest)
    assert (edges[0], edges[-1]) == (1, max(1, longest) + 1)
    assert np.all(np.diff(edges) > 0)
    assert len(edges) <= 41


def test_shares_add_up_to_one_and_are_those_of_the_run(run):
    shares = payload({"one": [run]}, {}, minimum=0.0)["methods"][0]["shares"]
    assert sum(shares["share"]) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(shares["share"], run.stats.work_share[shares["workers"]], rtol=1e-5)
    assert shares["num_workers"] == 4
    assert shares["seconds"] == sorted(shares["seconds"], reverse=True)


def test_of_many_workers_the_slowest_half_and_some_of_the_others_are_chosen_slowest_first():
    chosen = choose_workers(np.arange(1_000.0), most=40)
    assert len(set(chosen.tolist())) == 40
    assert chosen[:20].tolist() == list(range(999, 979, -1))
    assert chosen[-1] == 0
    assert np.all(np.diff(chosen) < 0)
    assert choose_workers(np.array([3.0, 1.0, np.inf]), most=40).tolist() == [2, 0, 1]


def test_dropped_work_is_named_as_such():
    run = a_run(nw.RingmasterASGD(nw.Constant(0.1), max_delay=6))
    [method] = payload({"Ringmaster": [run]}, {}, minimum=0.0)["methods"]
    jobs = method["timeline"]["jobs"]
    kinds = [KINDS[code] for code in jobs["kind"]]
    assert all((step > 0) == (kind == "applied") for step, kind in zip(jobs["step"], kinds, strict=True))
    assert kinds.count("dropped") == run.stats.dropped
    assert summary([run], 0.0)["dropped"] == run.stats.dropped > 0


def test_the_summary_is_the_median_over_runs(run):
    runs = [with_losses(run, [9.0, level]) for level in (1.0, 5.0, 2.0)]
    row = summary(runs, minimum=0.5)
    assert (row["runs"], row["loss"], row["error"], row["diverged"]) == (3, 2.0, 1.5, 0)
    assert row["delay_mean"] == pytest.approx(run.trace.delay.mean())


# Configuration


def test_a_configuration_is_flattened_and_says_nothing_twice():
    assert flat({"budget": {"type": "Budget", "steps": 5}, "speeds": {"type": "Fixed", "seconds": [1.0] * 20}}) == {
        "budget.steps": "5",
        "speeds": "Fixed",
        "speeds.seconds": "20 values, 1 to 1",
    }


def test_what_differs_between_runs_is_apart_from_what_does_not(run):
    other = a_run(nw.MinibatchSGD(nw.Constant(0.5)))
    tables = config_tables({"async": [run, a_run(seed=1)], "minibatch": [other]}, None)
    differs, same = tables.split("Common to all runs")
    assert "AsynchronousSGD" in differs
    assert ">0, 1</td>" in differs
    assert "Exponential" in same


def test_the_differences_of_many_runs_have_a_row_per_run():
    runs = {f"run {place}": [a_run(gradients=20 + place)] for place in range(5)}
    differs, _ = config_tables(runs, None).split("Common to all runs")
    assert re.findall(r'<th scope="row">([^<]*)</th>', differs) == list(runs)
    assert '<td data-label="budget.gradients">24</td>' in differs


def test_entries_that_only_the_program_needs_are_not_shown(run):
    command = {"as_json": False, "stepsize": 0.1, "loss": "least-squares"}
    more = {
        "labels": {"command": command, "name": "mine"},
        "fingerprint": {"gradient_norm": 0.5, "gradient_direction": [1.0]},
    }
    table = config_tables({"one": [dataclasses.replace(run, config=run.config | more)]}, None)
    assert "as_json" not in table
    assert "gradient_" not in table
    assert '<th scope="row">command.loss</th><td data-label="value">least-squares</td>' in table
    assert '<th scope="row">labels.name</th><td data-label="value">mine</td>' in table


def test_the_report_of_a_sweep_shows_what_was_swept_and_where_the_report_was_made(tmp_path):
    make = nw.AsynchronousSGD(nw.Constant(0.1))
    sweep = nw.sweep(PROBLEM, make, SPEEDS, stepsizes=[0.01, 0.1, 0.2], seeds=2, gradients=60, progress=False)
    text = write_report(sweep, tmp_path / "a.html").read_text(encoding="utf-8")
    config = text.partition('id="config"')[2].partition("</section>")[0]
    assert '<th scope="row">stepsizes</th><td data-label="value">0.01, 0.1, 0.2</td>' in config
    assert '<th scope="row">evaluations</th><td data-label="value">every 3 gradients</td>' in config
    assert "EvaluationPlan" not in config
    assert "gamma" not in config
    where = text.partition('id="environment"')[2].partition("</section>")[0]
    assert "Where this report was made" in where
    assert '<th scope="row">numpy</th>' in where


# The page


def test_the_file_is_made_with_its_folders_and_returned(run, tmp_path):
    path = write_report({"one": run}, tmp_path / "new" / "folder" / "report.html", title="A & B")
    assert path == tmp_path / "new" / "folder" / "report.html"
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    assert "<title>A &amp; B</title>" in path.read_text(encoding="utf-8")


def test_names_with_html_in_them_stay_text(run, tmp_path):
    evil = "</script><script>alert('x')</script><b>&"
    path = write_report(
        {evil: run},
        tmp_path / "a.html",
        title=evil,
        notes=[evil],
        predictions=[(evil,) * 3],
        config={evil: {evil: evil}},
    )
    text = path.read_text(encoding="utf-8")
    assert "alert" in text
    assert "<script>alert" not in text
    assert "<b>" not in text
    assert len(re.findall("</script>", text)) == 2
    assert data_of(path)["methods"][0]["name"] == evil


def test_the_page_loads_nothing(run, tmp_path):
    text = write_report({"one": run}, tmp_path / "a.html").read_text(encoding="utf-8")
    for sign in ("http://", "https://", "@import", "fetch(", "XMLHttpRequest", "src="):
        assert sign not in text
    assert re.findall(r'href="([^"]*)"', text) == ["data:,"]


def test_notes_predictions_and_a_configuration_of_ones_own_are_shown(run, tmp_path):
    path = write_report(
        {"one": run},
        tmp_path / "a.html",
        notes=["It went well."],
        predictions=[("speedup", "3.2", "3.1")],
        config={"cluster": {"machines": 4, "gpu": None}},
    )
    text = path.read_text(encoding="utf-8")
    assert "<li>It went well.</li>" in text
    assert '<td data-label="predicted">3.2</td><td data-label="measured">3.1</td>' in text
    assert '<th scope="row">cluster.machines</th><td data-label="value">4</td>' in text
    assert "gpu" not in text.partition('id="config"')[2].partition("</section>")[0]
    assert "NoisyQuadratic" not in text


def test_the_machine_the_versions_and_the_commit_are_shown_apart_from_the_configuration(run, tmp_path):
    text = write_report({"one": run}, tmp_path / "a.html").read_text(encoding="utf-8")
    where = text.partition('id="environment"')[2].partition("</section>")[0]
    for entry in ("python", "numpy", "nowait", "cores", "system"):
        assert f'<th scope="row">{entry}</th>' in where
    assert "environment" not in text.partition('id="config"')[2].partition("</section>")[0]
    bare = dataclasses.replace(run, config={})
    assert 'id="environment"' not in write_report({"one": bare}, tmp_path / "b.html").read_text(encoding="utf-8")


def test_runs_without_names_are_named_by_what_was_run(run, tmp_path):
    others = [run, a_run(nw.MinibatchSGD(nw.Constant(0.5)))]
    names = [method["name"] for method in data_of(write_report(others, tmp_path / "a.html"))["methods"]]
    assert names == ["Asynchronous SGD", "Minibatch SGD"]
    [method] = data_of(write_report(run, tmp_path / "b.html"))["methods"]
    assert method["name"] == "Asynchronous SGD"


def test_without_predictions_there_is_no_section_for_them(run, tmp_path):
    assert 'id="theory"' not in write_report({"one": run}, tmp_path / "a.html").read_text(encoding="utf-8")


def test_a_million_arrivals_make_a_small_file(run, tmp_path):
    repeats = -(-1_000_000 // len(run.trace))
    arrivals = np.tile(run.trace.arrivals, repeats)
    for column in ("time", "started"):
        arrivals[column] += np.repeat(np.arange(repeats) * run.stats.seconds, len(run.trace))
    big = dataclasses.replace(run.trace, source=arrivals)
    many = with_losses(dataclasses.replace(run, trace=big), 1 / np.arange(1.0, 200_000.0))
    path = write_report({f"method {place}": many for place in range(4)}, tmp_path / "big.html")
    assert path.stat().st_size < 1_000_000


@pytest.mark.parametrize("wrong", [{}, [1], None, "runs"])
def test_runs_must_be_named(wrong, tmp_path):
    with pytest.raises(TypeError, match="runs must be named"):
        write_report(wrong, tmp_path / "a.html")


def test_what_is_no_run_is_refused_and_nothing_is_written(run, tmp_path):
    for wrong in (1, [], [run, 1], "run", {"inner": run}):
        with pytest.raises(TypeError, match="'one' must be a Run or a list of Runs, or a Sweep"):
            write_report({"one": wrong}, tmp_path / "a.html")
    with pytest.raises(TypeError, match="the name of a run must be a string, got 1"):
        write_report({1: run}, tmp_path / "a.html")
    with pytest.raises(ValueError, match="minimum must be a finite number"):
        write_report({"one": run}, tmp_path / "a.html", minimum=np.nan)
    with pytest.raises(TypeError, match="notes must be a list of sentences"):
        write_report({"one": run}, tmp_path / "a.html", notes="sentence")
    with pytest.raises(ValueError, match="predictions must be rows of text"):
        write_report({"one": run}, tmp_path / "a.html", predictions=[("what", "3")])
    with pytest.raises(TypeError, match="config must be a dictionary"):
        write_report({"one": run}, tmp_path / "a.html", config=[1])
    assert list(tmp_path.iterdir()) == []
