"""``nw.reproduce``: published experiments run again."""

import dataclasses
import json
import math
import signal
from functools import partial

import numpy as np
import pytest

import nowait as nw
from nowait.core import sampler
from nowait.studies.reproduce import PAPERS, paper_named
from nowait.studies.reproduce.federated import federated_softmax
from nowait.studies.reproduce.measured import Curve, Measured, times
from nowait.studies.reproduce.paper import Claim, Entry, Panel, Paper, Verdict, not_checked
from nowait.studies.reproduce.rennala import square_roots
from nowait.studies.reproduce.ringmaster import half_normal
from nowait.studies.reproduce.tridiagonal import ProgressQuadratic, SharedNoiseQuadratic, TridiagonalQuadratic

QUADRATIC = nw.problems.NoisyQuadratic(dimension=3, mu=0.2, sigma=0.01)


def curve(entry="a", errors=((1.0, 0.1),), x=(0.0, 10.0), panel="p"):
    return Curve(
        panel=panel,
        entry=entry,
        variant="",
        stepsize=0.1,
        tried=1,
        at_the_end=False,
        axis="time",
        x=tuple(np.array(x) for _ in errors),
        errors=tuple(np.array(one) for one in errors),
        steps=1,
        longest_delay=1,
    )


NOTHING = not_checked("nothing")


def a_paper(entries, judge):
    def panels(quick):
        return [
            Panel("one", QUADRATIC, lambda workers: nw.speeds.Fixed(1.0, workers=workers), 3, entries, 2, gradients=60)
        ]

    return Paper("small", "Nobody, 2026", "a test", 0.1, panels, (Claim("here", "all is well", judge),), ("all",))


@pytest.fixture
def small(monkeypatch):
    def install(*entries, judge=NOTHING):
        monkeypatch.setitem(PAPERS, "small", a_paper(entries, judge))

    return install


# What is measured


def test_the_median_curve_is_that_of_the_logarithms():
    found = curve(errors=((1.0, 0.01), (1.0, 0.0001), (1.0, 1e-6)))
    assert found.final == pytest.approx(1e-4)
    assert found.middle[1][100] == pytest.approx(1e-2)
    assert found.reached(1.001e-2) == pytest.approx(5.0)
    assert found.reached(1e-5) == math.inf


def test_the_speedup_is_measured_at_the_larger_of_the_two_last_errors():
    measured = Measured()
    measured.add(curve("fast", errors=((1.0, 1e-4),)))
    measured.add(curve("slow", errors=((1.0, 1e-2),)))
    assert measured.speedup("p", "fast", "slow") == pytest.approx(2.0)
    assert measured.speedup("p", "slow", "fast") == pytest.approx(0.5)
    assert measured.best("p").entry == "fast"
    assert times(measured.speedup("p", "slow", "fast")) == "2 times later"


def test_a_method_that_diverged_is_infinitely_slower():
    measured = Measured()
    measured.add(curve("good"))
    measured.add(curve("bad", errors=((1.0, math.inf),)))
    measured.add(curve("worse", errors=((1.0, math.inf),)))
    assert measured.speedup("p", "good", "bad") == math.inf
    assert measured.speedup("p", "bad", "good") == 0.0
    assert measured.speedup("p", "bad", "worse") == 1.0
    assert times(0.0) == "never: it diverges"
    assert measured.curve("p", "bad").diverged == 1


def test_a_method_that_never_improves_has_a_finite_speedup():
    measured = Measured()
    measured.add(curve("good"))
    measured.add(curve("lazy", errors=((1.0, 2.0),)))
    assert measured.speedup("p", "good", "lazy") == 1.0  # both have an error of at most 2 from the start


def test_roughness_ignores_the_trend():
    x = tuple(range(100))
    steady = 10.0 ** -(np.linspace(0, 2, 100) ** 2)
    wavy = steady * np.where(np.arange(100) % 2, 1.5, 1 / 1.5)
    assert curve(errors=(steady,), x=x).roughness() < 1e-9
    assert curve(errors=(wavy,), x=x).roughness() > 0.3
    assert curve(errors=(steady, wavy), x=x).roughness() > 0.3
    assert curve(errors=((1.0, math.inf),)).roughness() == math.inf


# The problems


def test_the_tridiagonal_quadratic_in_both_bases_is_the_same_function():
    size = 7
    usual, turned = ProgressQuadratic(size, 1.0, start=3.0), TridiagonalQuadratic(size, start=3.0)
    matrix = 0.25 * (2 * np.eye(size) - np.eye(size, k=1) - np.eye(size, k=-1))
    np.testing.assert_allclose(np.linalg.eigvalsh(matrix), turned.eigenvalues, rtol=1e-12)
    assert usual.loss(usual.initial()) == pytest.approx(turned.loss(turned.initial()), rel=1e-12)
    sample = sampler(0).sample(0, 0)
    first = usual.gradient(usual.initial(), sample)
    np.testing.assert_allclose(first, matrix @ usual.initial() + 0.25 * np.eye(size)[0])
    assert np.linalg.norm(turned.gradient(turned.initial(), sample)) == pytest.approx(np.linalg.norm(first))
    assert usual.loss(usual.minimum()[0]) == pytest.approx(0.0, abs=1e-15)


def test_shared_noise_moves_all_entries_by_the_same_number():
    problem = SharedNoiseQuadratic(9, noise=0.5)
    point, sample = problem.initial(), sampler(3).sample(1, 4)
    noise = problem.gradient(point, sample) - problem.exact.gradient(point, sample)
    places = np.arange(1, 10)
    vectors = np.sqrt(2 / 10) * np.sin(np.pi * np.outer(places, places) / 10)
    np.testing.assert_allclose(vectors @ noise, 0.5 * sample.normals(1)[0], rtol=1e-9)


def test_progress_noise_hides_what_is_behind_the_last_entry_and_is_unbiased():
    problem = ProgressQuadratic(4, probability=0.25, start=2.0)
    point = problem.initial()
    drawn = np.array([problem.gradient(point, sampler(0).sample(0, job)) for job in range(4_000)])
    assert set(np.round(drawn[:, 1], 9)) == {0.0, -2.0}
    assert len(set(drawn[:, 0])) == 1
    np.testing.assert_allclose(
        drawn.mean(axis=0), ProgressQuadratic(4, 1.0).gradient(point, sampler(0).sample(0, 0)), atol=0.06
    )


def test_clients_have_classes_of_their_own():
    problem = federated_softmax(20, 30, concentration=0.1, batch_size=2)
    labels = problem.targets.reshape(20, 30)
    assert problem.num_shards == 20
    assert np.median([len(np.unique(client)) for client in labels]) <= 3
    assert len(np.unique(labels)) == 10


# The settings


def test_workers_that_rennala_never_uses_can_be_left_out():
    entry = next(entry for entry in PAPERS["rennala"].panels(True)[1].entries if entry.fastest)
    assert entry.fastest < 100
    runs = [
        nw.simulate(ProgressQuadratic(10, 0.5), nw.RennalaSGD(0.5, 30), square_roots(workers), steps=5, progress=False)
        for workers in (entry.fastest, 100)
    ]
    np.testing.assert_array_equal(runs[0].last, runs[1].last)
    np.testing.assert_array_equal(
        runs[0].trace.time[runs[0].trace.step > 0], runs[1].trace.time[runs[1].trace.step > 0]
    )


def test_workers_that_rennala_never_uses_can_be_left_out_with_random_times():
    problem = TridiagonalQuadratic(5, 0.01)
    runs = [
        nw.simulate(problem, nw.RennalaSGD(0.5, 24), half_normal(workers), steps=20, progress=False)
        for workers in (128, 200)
    ]
    np.testing.assert_array_equal(runs[0].last, runs[1].last)


@pytest.mark.parametrize("name", list(PAPERS))
def test_every_claim_is_about_panels_that_exist(name):
    paper = paper_named(name)
    measured = Measured()
    for panel in paper.panels(True):
        for entry in panel.entries:
            measured.add(dataclasses.replace(curve(entry.name, panel=panel.title), stepsize=entry.stepsizes[0]))
    for claim in paper.claims:
        verdict = claim.judge(measured)
        assert verdict.agreement in ("agrees", "partly", "disagrees", "not checked"), claim.reported
        assert verdict.got
    assert paper.differences


# The whole


def test_the_best_setting_on_another_seed_is_taken(small):
    small(
        Entry(
            "tuned", {"buffer 1": partial(nw.FedBuff, buffer=1), "buffer 3": partial(nw.FedBuff, buffer=3)}, (1e-6, 0.3)
        ),
        Entry.of("given", nw.AsynchronousSGD, 1e9),
    )
    found = nw.reproduce("small", progress=False)
    tuned, given = found.curves
    assert tuned.stepsize == 0.3
    assert (tuned.tried, tuned.at_the_end) == (4, True)
    assert (given.tried, given.at_the_end) == (1, False)
    assert given.diverged == 2
    assert given.final == math.inf
    assert len(tuned.errors) == 2
    assert tuned.x[0][-1] == 60
    assert "diverged" in str(found)


def test_the_result_is_printed_saved_and_told(small, tmp_path):
    small(
        Entry.of("plain", nw.AsynchronousSGD, 0.1), judge=lambda measured: Verdict(f"{len(measured)} curve", "partly")
    )
    told = []
    found = nw.reproduce("small", quick=True, folder=tmp_path / "new", tell=told.append, progress=False)
    assert told == [f"one: plain, γ = 0.1: F − F* = {found.curves[0].final:.3g}"]
    text = str(found)
    for words in (
        "Nobody, 2026",
        "Quick form",
        "PARTLY (here)",
        "we get: 1 curve",
        "Differences from the paper:\n  * all",
    ):
        assert words in text
    saved = json.loads((tmp_path / "new" / "reproduction.json").read_text())
    assert saved["claims"] == [{"source": "here", "reported": "all is well", "got": "1 curve", "agreement": "partly"}]
    assert saved["curves"][0]["errors"][0][-1] == pytest.approx(found.curves[0].errors[0][-1])
    assert (tmp_path / "new" / "reproduction.png").stat().st_size > 1_000


def test_an_interrupt_keeps_the_runs_so_far(small, tmp_path):
    small(Entry.of("first", nw.AsynchronousSGD, 0.1), Entry.of("second", nw.AsynchronousSGD, 0.1))
    with pytest.raises(nw.Interrupted) as caught:
        nw.reproduce("small", folder=tmp_path, tell=lambda _: signal.raise_signal(signal.SIGTERM), progress=False)
    partial_result = caught.value.reproduction
    assert caught.value.signal == "SIGTERM"
    assert [one.entry for one in partial_result.curves] == ["first"]
    assert partial_result.claims == []
    assert "Interrupted" in str(partial_result)
    assert json.loads((tmp_path / "reproduction.json").read_text())["interrupted"]


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"no reproduction 'fedbuf': choose one of .*; did you mean 'fedbuff'"):
        nw.reproduce("fedbuf")
    with pytest.raises(ValueError, match="choose one of asynchronous-sgd, rennala"):
        nw.reproduce("zzz")


def test_the_quick_form_of_ringmaster_is_deterministic():
    first, second = (nw.reproduce("ringmaster", quick=True, progress=False) for _ in range(2))
    assert first.as_dictionary() == second.as_dictionary()
