"""A lock file: one process at a time writes to a folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import final

from nowait.recording.errors import DamagedFileError
from nowait.recording.framefile import no_follow

ATTEMPTS, SECONDS_BETWEEN_ATTEMPTS = 5, 0.02
"""``folder_state`` holds a shared lock for an instant, which must not keep a run from starting."""


@final
class FileLock:
    """Held until ``release``, or until this process ends, also by a crash."""

    def __init__(self) -> None:
        self._descriptor = -1

    def acquire(self, path: Path, refusal: str) -> None:
        """Lock the file, which is created if it does not exist; raise ValueError if another process holds the lock."""
        import fcntl  # POSIX only, like the engine with real workers

        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | no_follow(), 0o644)
        except OSError as error:
            raise DamagedFileError(path, f"it cannot be opened to lock the folder ({error.strerror})") from None
        for _ in range(ATTEMPTS):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(SECONDS_BETWEEN_ATTEMPTS)
            else:
                return
        self.release()
        raise ValueError(refusal)

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
