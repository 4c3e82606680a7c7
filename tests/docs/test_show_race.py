"""The race that README and the start page show: its table, and where it is written."""

import shutil
from pathlib import Path

import pytest

import nowait as nw
import show_race
from nowait.studies import usual_methods

ROOT = Path(__file__).parents[2]
PROBLEM = nw.problems.LeastSquares.random(samples=100, dimension=5, batch_size=4, seed=0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    options = {"engine": "simulate", "speeds": nw.speeds.Fixed([1.0, 2.0, 9.0]), "gradients": 200, "progress": False}
    folder = tmp_path_factory.mktemp("shown") / "race"
    return nw.race(PROBLEM, tuning_sizes=2, folder=folder, **options), folder


def test_the_table_has_a_row_for_every_method_and_the_first_is_the_baseline(saved):
    race, _ = saved
    header, line, first, *others = show_race.table(race).splitlines()
    assert header.startswith(f"| method | tuned | steps | loss − F\\* after {race.seconds:.3g} s |")
    assert line == "| --- | --- | ---: | ---: | ---: |"
    assert first.startswith("| Minibatch SGD | stepsize ")
    assert first.endswith("| the baseline |")
    assert [row.split(" | ")[0].removeprefix("| ") for row in others] == list(usual_methods())[1:]
    assert "| m 1, momentum 0.9, stepsize " in others[2]


def test_both_pages_get_the_table_between_their_comments_and_the_figure_is_copied(saved, tmp_path):
    race, folder = saved
    (tmp_path / "docs").mkdir()
    for name in show_race.PAGES:
        shutil.copy(ROOT / name, tmp_path / name)
    for _ in range(2):
        show_race.show(folder, tmp_path)
    for name in show_race.PAGES:
        old, new = ((root / name).read_text() for root in (ROOT, tmp_path))
        assert show_race.with_table(old, show_race.table(race)) == new
        assert new.startswith(old.partition(show_race.BEGIN)[0])
        assert new.endswith(old.partition(show_race.END)[2])
    assert (tmp_path / "docs" / "race.png").read_bytes() == (folder / "race.png").read_bytes()


def test_a_page_without_the_comments_is_refused():
    with pytest.raises(ValueError, match="the page needs the comments"):
        show_race.with_table("# nowait", "| |")
