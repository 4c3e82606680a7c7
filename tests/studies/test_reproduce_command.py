"""The command ``nowait reproduce``."""

import json

from typer.testing import CliRunner

from nowait.cli import app
from nowait.studies.reproduce import PAPERS

RUNNER = CliRunner()


def test_without_a_name_the_papers_are_listed():
    result = RUNNER.invoke(app, ["reproduce"])
    assert result.exit_code == 0, result.output
    for name in PAPERS:
        assert f"{name} (about" in result.output
    listed = json.loads(RUNNER.invoke(app, ["reproduce", "--json"]).stdout)
    assert [paper["name"] for paper in listed] == list(PAPERS)


def test_an_unknown_name_is_a_wrong_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["reproduce", "ringlader"])
    assert result.exit_code == 2
    assert "did you mean" in result.output
    assert not (tmp_path / "runs").exists()


def test_the_command_writes_figure_and_data_and_prints_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["reproduce", "ringleader", "--quick", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["paper"] == "ringleader"
    assert len(found["claims"]) == 4
    folder = tmp_path / "runs" / "reproduce-ringleader-1"
    assert {path.name for path in folder.iterdir()} == {"reproduction.json", "reproduction.png"}
    again = RUNNER.invoke(app, ["reproduce", "ringleader", "--quick", "--folder", str(folder)])
    assert again.exit_code == 2
    assert "exists" in again.output
