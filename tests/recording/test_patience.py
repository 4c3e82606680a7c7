"""Writing goes on when descriptors or space were missing for a moment only."""

import errno
import os

import pytest

from nowait.recording import framefile, patience
from nowait.recording.checked_lines import CheckedLines
from nowait.recording.files import append_line, replace_file, sync
from nowait.recording.framefile import FrameFile


@pytest.fixture
def pauses(monkeypatch):
    """The seconds that were waited, in place of waiting."""
    waited = []
    monkeypatch.setattr(patience, "sleep", waited.append)
    return waited


def failing(call, *codes, after=0):
    """Return a call that fails with these errors in turn, from its call number ``after`` on, and then works."""
    left, number = list(codes), 0

    def attempt(*args):
        nonlocal number
        number += 1
        if number > after and left:
            code = left.pop(0)
            raise OSError(code, os.strerror(code))
        return call(*args)

    return attempt


def test_a_line_is_appended_once_although_files_cannot_be_opened_and_the_disk_is_full_for_a_while(
    tmp_path, monkeypatch, pauses, caplog
):
    path = tmp_path / "metrics.jsonl"
    append_line(path, "first")
    whole = os.write
    in_part = failing(lambda descriptor, data: whole(descriptor, data[:3]), errno.ENOSPC, errno.EDQUOT, after=1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(os.open, errno.EMFILE, errno.ENFILE, errno.EMFILE))
        patched.setattr(os, "write", in_part)
        append_line(path, "second")
    assert path.read_text() == "first\nsecond\n"
    assert pauses == [*patience.PAUSES[:3], *patience.PAUSES[:2]]
    assert [record.getMessage() for record in caplog.records] == [
        "a file cannot be written ([Errno 24] Too many open files): trying again for 10 s",
        "a file cannot be written ([Errno 28] No space left on device): trying again for 10 s",
    ]


def test_a_frame_that_did_not_fit_on_the_disk_is_appended_whole(tmp_path, monkeypatch, pauses):
    file = FrameFile.open(tmp_path / "trace.rows", create=True)
    file.append(b"first")
    with monkeypatch.context() as patched:
        patched.setattr(framefile, "_write_at", failing(framefile._write_at, errno.ENOSPC))
        file.append(b"second")
    assert file.read(0, 100) == b"firstsecond"
    assert pauses == [patience.PAUSES[0]]


def test_the_lines_of_a_sweep_are_appended_once(tmp_path, monkeypatch, pauses):
    lines = CheckedLines(tmp_path / "runs.jsonl")
    lines.append([{"run": 0}])
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(os.open, errno.EMFILE))
        patched.setattr(os, "write", failing(os.write, errno.ENOSPC))
        lines.append([{"run": 1}, {"run": 2}])
    assert [row for _, row in lines.rows()] == [{"run": number} for number in range(3)]
    assert pauses == [patience.PAUSES[0]] * 2


def test_a_checkpoint_can_be_written_and_synced_when_descriptors_are_back(tmp_path, monkeypatch, pauses):
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(os.open, errno.EMFILE))
        replace_file(tmp_path / "state.json", b"{}")
        patched.setattr(os, "open", failing(os.open, errno.EMFILE))
        sync(tmp_path)
    assert (tmp_path / "state.json").read_bytes() == b"{}"
    assert pauses == [patience.PAUSES[0]] * 2


def test_it_is_tried_for_a_bounded_time_and_then_the_error_is_that_of_the_system(tmp_path, monkeypatch, pauses):
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(os.open, *[errno.EMFILE] * 100))
        with pytest.raises(OSError, match="Too many open files"):
            append_line(tmp_path / "metrics.jsonl", "a line")
    assert pauses == list(patience.PAUSES)


def test_other_errors_are_not_tried_again(tmp_path, monkeypatch, pauses):
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(os.open, errno.EACCES))
        with pytest.raises(PermissionError):
            append_line(tmp_path / "metrics.jsonl", "a line")
    assert pauses == []
