"""Exit statuses: 0 success, 1 an error found during the work, printed in one line, and the others below."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

import nowait
from nowait.recording.errors import DamagedFileError, NotARunError, OtherSettingsError

WRONG_OPTIONS, DIVERGED, KILLED = 2, 3, 128
"""Wrong options are refused before any work starts. A signal gives 128 plus its number, as in shells: 130 for Ctrl-C,
143 for SIGTERM."""

STUDY_FILES = ("sweep.json", "runs.jsonl", "bench.json", "entries.jsonl", "phases.jsonl")
"""Files of sweeps and benchmarks, which ``nowait check`` does not know."""


class WrongOptionError(typer.BadParameter):
    """The value of an option or argument is refused; the message is a whole sentence."""

    def format_message(self) -> str:
        """Return the sentence alone: it names the option."""
        return str(self.message)


def end(run: nowait.Run) -> None:
    """Set the exit status according to how a run ended."""
    if run.stats.interrupted:
        raise nowait.Interrupted.of(run)
    if run.stats.diverged:
        raise typer.Exit(DIVERGED)


@contextmanager
def on_interrupt(kept: Callable[[], str]) -> Iterator[None]:
    """If a signal ends this block, let the command say what is kept and how to go on; an empty text says nothing."""
    try:
        yield
    except KeyboardInterrupt as error:
        words = kept()
        if words:
            error.add_note(words)
        raise


def kept_run(folder: Path) -> str:
    """Return how to continue the run in a folder; empty if there is none."""
    if not (folder / "config.json").is_file():
        return ""
    return f"The run is kept in {folder}; continue with: nowait resume {shlex.quote(str(folder))}"


def kept_study(folder: Path, *own: str) -> str:
    """Return what the folder of a study keeps. One with nothing but the command's ``own`` files is removed."""
    if not folder.is_dir():
        return ""
    if all(path.name in own for path in folder.iterdir()):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        return ""
    return f"What was complete is in {folder}. It cannot be continued: run the command again for the rest."


class StoppedError(KeyboardInterrupt):
    """A signal ended a command that never has anything to save. The message is all that is printed."""

    def __init__(self, words: str, signal: str) -> None:
        super().__init__(words)
        self.signal = signal


def signal_of(error: KeyboardInterrupt) -> str:
    """Return the name of the signal that raised this."""
    return error.signal if isinstance(error, nowait.Interrupted | StoppedError) else "SIGINT"


@contextmanager
def signals_told_once() -> Iterator[None]:
    """Drop the warning of a run that a signal ended it: the last line of the command says the same."""

    def is_new(record: logging.LogRecord) -> bool:
        return not getattr(record, "by_signal", False)

    logger = logging.getLogger("nowait")
    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


def words_of(error: KeyboardInterrupt) -> str:
    """Return what a command says that a signal ended: what was interrupted, and what is kept."""
    if isinstance(error, StoppedError):
        return str(error)
    notes: list[str] = getattr(error, "__notes__", [])
    return "\n".join([f"nowait: {str(error) or 'interrupted'}", *(notes or ["Nothing was saved."])])


def end_early(name: str) -> None:
    """End this process because of a signal that came before the command began."""
    typer.echo(f"nowait: {name} ended the command before it began", err=True)
    sys.exit(KILLED + int(signal.Signals[name]))


def status_of(error: KeyboardInterrupt) -> int:
    """Return the exit status of a command that a signal ended."""
    return KILLED + int(signal.Signals[signal_of(error)])


@contextmanager
def refused_as_options() -> Iterator[None]:
    """End the command with status 2 if a value is refused in this block, except by the user's own code.

    A damaged run is not a wrong option: its error passes.
    """
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        if place_of(error) or isinstance(error, DamagedFileError | NotARunError):
            raise
        raise WrongOptionError(sentence_of(error)) from error


@contextmanager
def other_settings_refused() -> Iterator[None]:
    """End the command with status 2 if a run is resumed in this block with other settings than it had."""
    try:
        yield
    except OtherSettingsError as error:
        raise WrongOptionError(error.with_option("--allow-changes")) from error


def sentence_of(error: BaseException) -> str:
    """Return the message of an error; for one of the system, the file and what is wrong with it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename2 or error.filename}: {error.strerror}"
    return str(error)


def advice_on(error: BaseException) -> str:
    """Return what to do about a damaged run or study; empty for other errors."""
    if isinstance(error, DamagedFileError) and Path(error.name).name in STUDY_FILES:
        return "; remove the folder, or choose another one with --folder"
    is_damage = isinstance(error, DamagedFileError | NotARunError)
    return "; nowait check FOLDER says which files are whole and what can be done with them" if is_damage else ""


def place_of(error: BaseException) -> str:
    """Return the place in the user's own code where an error was raised; empty if it was raised elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not is_of_the_user(frames[-1].filename):
        return ""
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}: "


def is_of_the_user(filename: str) -> bool:
    """Return True if a file belongs neither to this library nor to any installed package."""
    own = str(Path(nowait.__file__).parent)
    return not (filename.startswith((own, sys.base_prefix, sys.prefix, "<")) or "site-packages" in filename)
