"""What a command says, and how it exits, when a signal ends it."""

import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app
from nowait.cli.exits import end_early, kept_run, kept_study, on_interrupt, status_of, words_of
from nowait.engines.signals import first_signals


def interrupted_with(kept):
    with pytest.raises(KeyboardInterrupt) as caught, on_interrupt(lambda: kept):
        raise nw.Interrupted("SIGINT")
    return words_of(caught.value)


def test_it_says_what_is_kept():
    assert interrupted_with("It is in the folder.") == "nowait: SIGINT ended the work\nIt is in the folder."


def test_or_that_nothing_is():
    assert interrupted_with("") == "nowait: SIGINT ended the work\nNothing was saved."
    assert words_of(KeyboardInterrupt()) == "nowait: interrupted\nNothing was saved."


def test_other_errors_have_no_such_note():
    with pytest.raises(LookupError) as caught, on_interrupt(lambda: "kept"):
        raise LookupError("no")
    assert not hasattr(caught.value, "__notes__")


def test_a_run_is_kept_if_its_folder_can_be_resumed(tmp_path):
    folder = tmp_path / "my run"
    assert kept_run(folder) == ""
    folder.mkdir()
    assert kept_run(folder) == ""
    (folder / "config.json").touch()
    assert kept_run(folder).endswith(f"continue with: nowait resume '{folder}'")


def test_the_folder_of_a_study_that_found_nothing_is_removed(tmp_path):
    folder = tmp_path / "study"
    assert kept_study(folder) == ""
    folder.mkdir()
    (folder / "config.json").touch()
    assert kept_study(folder, "config.json") == ""
    assert not folder.exists()


def test_the_folder_of_one_that_found_something_is_named(tmp_path):
    (tmp_path / "config.json").touch()
    (tmp_path / "result.json").touch()
    assert kept_study(tmp_path, "config.json").startswith(f"What was complete is in {tmp_path}.")
    assert (tmp_path / "config.json").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_the_command_begins_ends_it_in_one_line(number, status, capsys):
    with pytest.raises(SystemExit) as caught, first_signals(end_early):
        signal.raise_signal(number)
    assert caught.value.code == status
    assert capsys.readouterr().err == f"nowait: {number.name} ended the command before it began\n"


def test_a_signal_while_workers_start_has_the_status_of_that_signal():
    assert status_of(nw.Interrupted("SIGTERM", "SIGTERM came before the run had begun")) == 143


def test_a_run_that_a_signal_ended_says_how_to_continue_it(tmp_path, monkeypatch, caplog):
    """The signal arrives after some steps, as if the user had pressed Ctrl-C."""
    train = nw.train

    def interrupted(*arguments, **options):
        def press(control):
            if control.steps == 20:
                signal.raise_signal(signal.SIGINT)

        return train(*arguments, **options | {"callbacks": [press]})

    monkeypatch.setattr(nw, "train", interrupted)
    folder = tmp_path / "run"
    options = ["--workers", "2", "--steps", "1000000000", "--stepsize", "0.01", "--folder", str(folder)]
    result = CliRunner().invoke(app, ["train", *options])
    run = nw.load(folder)
    assert result.exit_code == 130
    assert f"nowait: SIGINT ended the run after {run.stats.steps} steps" in result.stderr
    assert "SIGINT" not in caplog.text, "the last line of the command says it"
    assert f"continue with: nowait resume {folder}" in result.stderr
    assert run.history.step[-1] == run.stats.steps
    assert f"loss {run.history.loss[-1]:.6g});" in result.stdout.replace("\n", "")


def test_an_ignored_signal_stays_ignored():
    """As in the background of a shell script, or under nohup."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "from nowait.cli.exits import end_early; from nowait.engines.signals import first_signals\n"
        "with first_signals(end_early): signal.raise_signal(signal.SIGINT)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
