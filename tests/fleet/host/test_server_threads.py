"""How many threads the server uses, and that their number changes nothing."""

import threading

import numpy as np
import pytest

import nowait as nw
from nowait.fleet import platform
from nowait.fleet.platform import available_cores, cores_of_quota, server_threads
from nowait.numerics.chunks import LARGE

METHOD = nw.RennalaSGD(nw.Constant(0.25), batch=2)


class Pull:
    """A gradient that depends on the sample in one entry only, so that it is cheap."""

    dimension = LARGE + 1

    def initial(self):
        return np.linspace(-1, 1, self.dimension, dtype=np.float32)

    def gradient_into(self, point, sample, out):
        np.copyto(out, point)
        out[0] += sample.normals(1)[0]

    def gradient(self, point, sample):
        out = np.empty_like(point)
        self.gradient_into(point, sample, out)
        return out

    def loss(self, point):
        return float(point[0])


@pytest.mark.parametrize(
    ("asked", "length", "workers", "num_cores", "expected"),
    [
        (None, LARGE - 1, 4, 16, 1),  # small params
        (None, LARGE, 4, 16, 8),  # at most eight
        (None, LARGE, 10, 16, 6),  # the cores that workers leave free
        (None, LARGE, 16, 16, 4),  # as many workers as cores: a quarter of them
        (None, LARGE, 400, 64, 8),
        (None, LARGE, 2, 2, 1),
        (None, LARGE, 1, 2, 1),
        (5, LARGE - 1, 4, 16, 5),
        (100, LARGE, 4, 2, 100),
    ],
)
def test_the_number_of_threads(asked, length, workers, num_cores, expected):
    assert server_threads(asked, length=length, workers=workers, cores=num_cores) == expected


def test_processes_poll_for_messages_only_on_a_gpu_and_if_each_has_a_core():
    assert platform.spin_seconds(on_device=True, workers=2, cores=4) == platform.SPIN_SECONDS > 0
    assert platform.spin_seconds(on_device=True, workers=3, cores=4) == 0
    assert platform.spin_seconds(on_device=False, workers=1, cores=64) == 0


@pytest.mark.parametrize("text", ["", "max 100000", "-1 100000", "100000 0", "garbage", "1 x"])
def test_a_quota_that_is_no_limit(text):
    assert cores_of_quota(text) == float("inf")


def quota(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(text)


def test_the_cores_of_a_container_are_those_of_its_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "CGROUPS", tmp_path)
    monkeypatch.setattr(platform.os, "sched_getaffinity", lambda process: range(16), raising=False)
    monkeypatch.setattr(platform, "_groups", lambda: ["slice/own", "slice", "."])
    assert available_cores() == 16
    quota(tmp_path / "slice", "650000 100000")
    assert available_cores() == 6
    quota(tmp_path / "slice" / "own", "50000 100000")
    assert available_cores() == 1


def test_a_quota_of_the_first_version_of_control_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "CGROUPS", tmp_path)
    monkeypatch.setattr(platform.os, "sched_getaffinity", lambda process: range(16), raising=False)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert available_cores() == 3


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
def test_a_wrong_number_of_threads(wrong, tmp_path):
    with pytest.raises(ValueError, match="server_threads must be an integer of at least 1"):
        nw.train(nw.problems.NoisyQuadratic(3), METHOD, workers=1, steps=1, server_threads=wrong)
    with pytest.raises(ValueError, match="server_threads must be an integer of at least 1"):
        nw.resume(tmp_path, nw.problems.NoisyQuadratic(3), server_threads=wrong)


def test_a_run_with_several_threads_is_replayed_by_one_with_the_same_bits():
    seen = []

    def count(control):
        seen.append(sum(thread.name == "nowait-server" for thread in threading.enumerate()))

    run = nw.train(Pull(), METHOD, workers=2, steps=4, server_threads=3, callbacks=[count], output=nw.UniformAverage())
    assert seen == [2, 2, 2, 2]
    assert not any(thread.name == "nowait-server" for thread in threading.enumerate())
    again = nw.replay(run.trace, Pull(), METHOD, output=nw.UniformAverage())
    assert np.array_equal(again.last, run.last)
    assert np.array_equal(again.params, run.params)
    assert again.trace.gradient_norm.tolist() == run.trace.gradient_norm.tolist()
    assert "server_threads" not in run.config
