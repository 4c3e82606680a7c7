"""Figures for papers: their size, text, legends and files, and axes of the user's own."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

import nowait as nw
from nowait.studies import Prescribed, Ratio, RulePays, longest_delay

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
MEDIANS = [*np.linspace(0.5, 2.0, 39).tolist(), 100.0]
METHODS = {
    "minibatch SGD that waits for all workers": nw.MinibatchSGD(nw.Constant(0.5)),
    "asynchronous SGD with delay-adaptive stepsizes": nw.AsynchronousSGD(nw.DelayAdaptive(0.02)),
    "Ringmaster ASGD with delays up to 80": nw.RingmasterASGD(nw.Constant(0.02), max_delay=80),
    "Rennala SGD with batches of 40 gradients": nw.RennalaSGD(nw.Constant(0.5), batch=40),
    "FedBuff with a buffer of 10 gradients": nw.FedBuff(nw.Constant(0.1), buffer=10),
}
PANELS = {
    "race": 3,
    "errors": 1,
    "delays": 1,
    "work_share": 1,
    "timeline": 1,
    "sweep": 2,
    "longest_delay": 2,
    "reproduction": 2,
    "tolerance": 3,
    "whatif": 2,
    "rule_pays": 2,
}


@pytest.fixture(scope="module")
def shown():
    """What every figure draws: five methods with long names, forty workers, and small studies."""
    speeds = nw.speeds.LogNormal(MEDIANS, sigma=0.3)
    runs = {name: nw.simulate(PROBLEM, method, speeds, seconds=150.0) for name, method in METHODS.items()}
    few = nw.speeds.Exponential([1.0, 8.0])
    sizes = np.geomspace(0.01, 100.0, 5)
    sweep = nw.sweep(PROBLEM, nw.AsynchronousSGD(nw.Constant(1.0)), few, stepsizes=sizes, seeds=2, steps=100)
    tolerance = nw.tolerance(PROBLEM, {"sgd": nw.Sgd()}, delays=[1, 4], steps=30, seeds=1, trials=3, progress=False)
    times = np.random.default_rng(0).lognormal(0.0, 0.2, (4, 20))
    return dict.fromkeys(["race", "errors", "delays", "work_share"], runs) | {
        "timeline": runs["Ringmaster ASGD with delays up to 80"],
        "sweep": sweep,
        "longest_delay": longest_delay(progress=False),
        "reproduction": nw.reproduce("rennala", quick=True, progress=False),
        "tolerance": tolerance,
        "rule_pays": rule_pays_study(),
        "whatif": nw.whatif(nw.speeds.Recorded.of(times.tolist())),
    }


def rule_pays_study():
    """Return a map of the size that the command makes."""
    names = ["quadratic", "logistic regression", "least squares"]
    rows = [Prescribed(name, 10.0**power, 1e-5, 1e-5 * 10**power) for name in names for power in range(5)]
    noises, clusters = (10.0, 1.0, 0.3, 0.1, 0.0), tuple(f"straggler × {number},000" for number in range(9))
    times = [Ratio(cluster, f"noise {noise:g}", (0.96, 2.2)) for noise in noises for cluster in clusters]
    return RulePays(16, 5, 80_000, rows, noises, clusters, times, [], [])


def draw(name, shown, **arguments):
    return getattr(nw.plots, name)(shown[name], **arguments)


def texts_of(figure):
    return [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]


@pytest.mark.parametrize(("name", "width"), [*((name, 3.3) for name in PANELS), ("race", 6.8), ("tolerance", 6.8)])
def test_a_figure_has_its_width_text_of_8_to_10_points_that_is_not_cut_and_one_legend(name, width, shown):
    figure = draw(name, shown, width=width)
    figure.draw_without_rendering()
    across, up = figure.get_size_inches()
    assert across == width
    assert up < 9.0
    assert all(8 <= text.get_fontsize() <= 10 for text in texts_of(figure))
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) > -0.02
    assert box.x1 < across + 0.02
    assert box.y1 < up + 0.02
    assert len(figure.legends) == (name != "whatif")
    for axes in figure.axes:
        assert axes.get_legend() is None
        assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for legend in figure.legends)


@pytest.mark.parametrize("name", PANELS)
def test_a_figure_is_drawn_into_axes_of_the_users_own(name, shown):
    own = Figure(figsize=(9.0, 9.0))
    axes = own.subplots(PANELS[name], squeeze=False)
    drawn = draw(name, shown, ax=axes[0, 0] if PANELS[name] == 1 else axes.ravel())
    assert drawn is axes[0, 0] if PANELS[name] == 1 else drawn == axes.ravel().tolist()
    assert own.get_size_inches().tolist() == [9.0, 9.0]
    assert all(one.has_data() for one in axes.ravel())
    assert sum(one.get_legend() is not None for one in axes.ravel()) <= 1


def test_wrong_axes_are_refused(shown):
    axes = Figure().subplots(2)
    with pytest.raises(TypeError, match="ax must be a sequence of 3 matplotlib Axes, because this figure has 3 panel"):
        draw("race", shown, ax=axes)
    with pytest.raises(TypeError, match="ax must be a matplotlib Axes"):
        draw("errors", shown, ax="left")
    with pytest.raises(ValueError, match="width= is for a new figure"):
        draw("errors", shown, ax=axes[0], width=3.3)
    with pytest.raises(ValueError, match="width must be"):
        draw("errors", shown, width=-1)


def test_fonts_are_truetype_in_pdf_and_text_is_text_in_svg(shown):
    figure = draw("errors", shown)
    files = {ending: io.BytesIO() for ending in ("pdf", "svg")}
    for ending, file in files.items():
        figure.savefig(file, format=ending)
    assert b"/Type3" not in files["pdf"].getvalue()
    assert b"/FontFile2" in files["pdf"].getvalue()
    assert b">FedBuff with a buffer of 10 gradients</text>" in files["svg"].getvalue()


def test_a_notebook_shows_a_sharp_image_of_the_figures_size(shown):
    image, shown_at = draw("errors", shown, width=3.0)._repr_png_()
    assert image.startswith(b"\x89PNG")
    assert int.from_bytes(image[16:20]) == 2 * shown_at["width"] == 576


def test_colours_and_lines_of_many_methods_differ():
    from nowait.plots.style import styles

    assert len({(style["color"], style["linestyle"]) for style in styles(32)}) == 32


def test_workers_are_never_joined_by_lines(shown):
    [axes] = draw("work_share", shown).axes
    *points, _ = axes.lines
    assert len(points) == len(METHODS)
    for line, run in zip(points, shown["work_share"].values(), strict=True):
        assert line.get_linestyle() == "None"
        assert line.get_ydata().tolist() == sorted(run.stats.work_share.tolist(), reverse=True)


def test_the_straggler_is_in_the_timeline_even_if_nothing_has_come_from_it():
    seconds = [*np.linspace(0.5, 2.0, 199).tolist(), 1000.0]
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(0.001)), nw.speeds.Fixed(seconds), seconds=20.0)
    figure = nw.plots.timeline(run)
    [axes] = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[:3] == ["199", "198", "197"]
    assert len(labels) == 24
    assert "no gradient yet" in [text.get_text() for text in figure.legends[0].get_texts()]
