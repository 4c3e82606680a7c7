"""What workers print is limited: the log keeps its beginning and its end."""

import itertools
import os

import pytest

import nowait as nw
from faulty import Faulty
from nowait.fleet.host import log
from nowait.fleet.host.log import OutputLimit, open_log


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(log, "LARGEST_LOG_BYTES", 1_000)
    monkeypatch.setattr(log, "KEPT_BYTES", 204)


@pytest.fixture
def opened(tmp_path):
    path = tmp_path / "workers.log"
    fd = open_log(path)
    yield path, fd
    os.close(fd)


def lines(start, stop):
    return b"".join(b"line %04d\n" % number for number in range(start, stop))


def test_a_log_within_the_limit_stays_as_it_is(small, opened):
    path, fd = opened
    os.write(fd, lines(0, 100))
    OutputLimit((fd,)).enforce()
    assert path.read_bytes() == lines(0, 100)


def test_a_log_past_the_limit_keeps_its_first_and_last_lines_and_says_what_is_missing(small, opened):
    path, fd = opened
    os.write(fd, lines(0, 1_000))
    OutputLimit((fd,)).enforce()
    first, note, last = path.read_text().partition("\n[nowait: 9600 bytes were left out here: workers printed a lot]\n")
    assert note
    assert first.encode() == lines(0, 20)
    assert last.encode() == lines(980, 1_000)


def test_writers_go_on_at_the_end_after_a_cut(small, opened):
    path, fd = opened
    another = os.open(path, os.O_WRONLY | os.O_APPEND)
    limit = OutputLimit((fd,))
    for start in range(0, 1_000, 100):
        os.write(another, lines(start, start + 100))
        limit.enforce()
        assert path.stat().st_size <= 1_000
    os.write(another, b"last words\n")
    os.close(another)
    assert path.read_bytes().startswith(lines(0, 20))
    assert path.read_bytes().endswith(b"line 0999\nlast words\n")
    assert b"\0" not in path.read_bytes()


def test_a_log_that_is_one_long_line_is_cut_as_well(small, opened):
    path, fd = opened
    os.write(fd, b"x" * 5_000)
    OutputLimit((fd,)).enforce()
    assert path.stat().st_size < 1_000


def test_a_file_that_is_open_for_writing_only_is_limited_as_well(small, tmp_path):
    """As Ray opens the files of its workers."""
    path = tmp_path / "worker.out"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, lines(0, 1_000))
    OutputLimit((fd, fd)).enforce()
    os.close(fd)
    assert path.stat().st_size < 1_000


def test_files_that_are_not_appended_to_and_pipes_are_left_alone(small, tmp_path):
    path = tmp_path / "output"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, lines(0, 1_000))
    reader, writer = os.pipe()
    OutputLimit((fd, writer, 10**6)).enforce()
    for end in (fd, reader, writer):
        os.close(end)
    assert path.read_bytes() == lines(0, 1_000)


def test_a_log_that_is_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "workers.log").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"workers\.log is a symbolic link: nothing is written through it; remove it"):
        open_log(tmp_path / "workers.log")


NOTE = b"bytes were left out here"


class Chatty(Faulty):
    """Prints a megabyte with each gradient."""

    def gradient(self, point, sample):
        for _ in range(1_000):
            print("x" * 999)  # noqa: T201
        return super().gradient(point, sample)


def test_a_worker_that_prints_a_lot_does_not_fill_the_disk(tmp_path):
    """The zygote cuts the log while the run goes on; the run ends when it has, or has missed it for too long."""
    path = tmp_path / "run" / "workers.log"
    sizes = [0]

    def stop_when_cut(control):
        sizes.append(path.stat().st_size)
        was_cut = any(later < earlier for earlier, later in itertools.pairwise(sizes))
        if (was_cut and NOTE in path.read_bytes()) or sizes[-1] > 20 * log.LARGEST_LOG_BYTES:
            control.stop()

    method = nw.AsynchronousSGD(nw.Constant(0.01))
    nw.train(Chatty(), method, workers=2, steps=10**9, folder=tmp_path / "run", callbacks=[stop_when_cut])
    assert max(sizes) <= 20 * log.LARGEST_LOG_BYTES, "the log was not cut"
    assert NOTE in path.read_bytes()
