"""What a run records of the machine, the versions and the commit."""

import json
import sys

import numpy as np

import nowait as nw
from nowait.recording.environment import environment, is_environment

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_machine_and_versions_are_json_values():
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["numpy"] == np.__version__
    assert found["machine"]["cores"] >= 1


def test_another_machine_or_version_is_another_environment():
    found = json.loads(json.dumps(environment()))
    assert is_environment(found)
    assert not is_environment(found | {"machine": found["machine"] | {"processor": "Other"}})
    assert not is_environment(found | {"machine": found["machine"] | {"host": "other"}})
    assert not is_environment(found | {"versions": found["versions"] | {"numpy": "1.0"}})
    assert not is_environment({})
    assert not is_environment(None)


def test_packages_that_are_not_imported_are_not_mentioned(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert "torch" not in environment()["versions"]


def test_the_commit_is_read_from_a_branch_a_packed_branch_and_a_detached_head(tmp_path):
    git, inner = tmp_path / ".git", tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs" / "heads" / "main").write_text(COMMIT + "\n")
    assert environment(inner)["commit"] == COMMIT
    (git / "refs" / "heads" / "main").unlink()
    (git / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert environment(inner)["commit"] == COMMIT
    (git / "HEAD").write_text(COMMIT)
    assert environment(inner)["commit"] == COMMIT


def test_the_commit_of_a_worktree_is_read_from_its_repository(tmp_path):
    git, tree = tmp_path / "repo" / ".git", tmp_path / "tree"
    (git / "worktrees" / "tree").mkdir(parents=True)
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "mine").write_text(COMMIT)
    (git / "worktrees" / "tree" / "HEAD").write_text("ref: refs/heads/mine\n")
    (git / "worktrees" / "tree" / "commondir").write_text("../..\n")
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {git / 'worktrees' / 'tree'}\n")
    assert environment(tree)["commit"] == COMMIT


def test_a_broken_repository_is_no_error(tmp_path):
    (tmp_path / ".git").mkdir()
    assert "commit" not in environment(tmp_path)
    (tmp_path / ".git" / "HEAD").write_bytes(b"\xff\xfe nonsense")
    assert "commit" not in environment(tmp_path)


def test_every_run_records_it():
    problem = nw.problems.NoisyQuadratic(dimension=2)
    run = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0]), steps=2, progress=False)
    assert run.config["environment"]["versions"]["nowait"]
