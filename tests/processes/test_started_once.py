"""``torchrun`` starts a script once per rank; a run must be started once."""

import pytest

import nowait as nw
from nowait.api.train_arguments import check_started_once

METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_a_rank_of_torchrun_is_refused_with_what_to_run_instead():
    sentence = r"rank 1 of 4 .*start the script once, with python instead of torchrun.*\(workers=4\).*os\.environ\.pop"
    with pytest.raises(ValueError, match=sentence):
        check_started_once(TORCHRUN)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"},
        {"WORLD_SIZE": "4"},  # set by hand in a script for Slurm
        {"WORLD_SIZE": "four", "RANK": "0"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_JOB_NUM_NODES": "2"},
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"},
        {"PMI_SIZE": "4", "PMI_RANK": "1", "MPI_LOCALNRANKS": "4"},
    ],
)
def test_one_process_and_the_variables_of_slurm_and_mpi_are_accepted(environment):
    check_started_once(environment)


def test_train_and_resume_look_at_the_environment(monkeypatch, tmp_path):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    problem = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
    with pytest.raises(ValueError, match="this process is rank 1 of 4"):
        nw.train(problem, METHOD, workers=2, steps=3, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="this process is rank 1 of 4"):
        nw.resume(tmp_path / "run", problem)


def test_without_world_size_the_run_starts(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WORLD_SIZE")
    problem = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
    assert nw.train(problem, METHOD, workers=2, steps=3).stats.steps == 3
