"""The entry point of the command: Ctrl-C while the library is being imported."""

import sys

import pytest

import nowait_command


class Interrupting:
    """A finder that raises, as a signal during an import does."""

    def find_spec(self, name, path=None, target=None):
        if name == "nowait.cli":
            raise KeyboardInterrupt


def test_ctrl_c_during_the_imports_ends_with_one_line_and_130(monkeypatch, capsys):
    for name in [name for name in sys.modules if name == "nowait.cli" or name.startswith("nowait.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        nowait_command.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "nowait: interrupted before it started; nothing was written\n"


def test_the_command_line_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["nowait", "--version"])
    with pytest.raises(SystemExit) as ended:
        nowait_command.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip()
