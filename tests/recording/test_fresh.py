"""Fresh folders: numbered names, and nothing is overwritten."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import nowait as nw
from nowait.recording.fresh import is_taken


def a_run(seed=0):
    problem = nw.problems.NoisyQuadratic(dimension=4)
    return nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.01)), nw.speeds.Fixed([1.0, 2.0]), steps=5, seed=seed)


def test_every_call_gives_the_next_number(tmp_path):
    folders = [nw.fresh_folder(tmp_path / "runs" / "mine") for _ in range(3)]
    assert [folder.name for folder in folders] == ["mine-1", "mine-2", "mine-3"]
    assert all(folder.is_dir() for folder in folders)


def test_a_name_that_a_file_has_is_skipped(tmp_path):
    (tmp_path / "mine-1").touch()
    assert nw.fresh_folder(str(tmp_path / "mine")).name == "mine-2"


def test_calls_at_the_same_time_give_different_folders(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(nw.fresh_folder, [tmp_path / "mine"] * 40))
    assert len(set(folders)) == 40


@pytest.mark.parametrize("base", ["", ".", "/", "runs/.."])
def test_a_base_without_a_name_is_refused(base):
    with pytest.raises(ValueError, match="base must end in a name"):
        nw.fresh_folder(base)


def test_a_run_is_saved_in_a_fresh_folder_and_not_over_another(tmp_path):
    first, second = a_run(seed=1), a_run(seed=2)
    folders = [run.save(nw.fresh_folder(tmp_path / "mine")) for run in (first, second)]
    assert [nw.load(folder).params.tolist() for folder in folders] == [first.params.tolist(), second.params.tolist()]
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        second.save(folders[0])


def test_the_current_folder_a_file_and_a_link_are_taken(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "broken").symlink_to("nowhere")
    assert not is_taken(tmp_path / "empty")
    assert not is_taken(tmp_path / "new")
    assert all(is_taken(tmp_path / name) for name in ("file", "link", "broken"))
    monkeypatch.chdir(tmp_path / "empty")
    assert is_taken(tmp_path / "empty")
