"""Systems without POSIX: simulations, theory and reports work; real workers raise a clear error."""

import os
import subprocess
import sys
import textwrap

WITHOUT_POSIX = """
    import sys, warnings
    import matplotlib.pyplot, multiprocessing, numba, numpy, rich.live, rich.progress, safetensors.numpy, scipy.optimize
    import scipy.sparse, scipy.special, subprocess, concurrent.futures, typer, typer.testing, cloudpickle, doctest
    import mmap, os, select, signal, socket

    warnings.filterwarnings("error", category=EncodingWarning, module="nowait")
    for module in ("fcntl", "grp", "pwd", "resource", "termios"):
        sys.modules[module] = None
    missing = {
        os: "fork posix_spawn killpg memfd_create mkfifo getuid sched_setscheduler sched_getaffinity SCHED_BATCH pread "
        "pwrite preadv pwritev set_blocking O_NOFOLLOW O_DIRECTORY O_CLOEXEC",
        select: "poll",
        socket: "AF_UNIX send_fds recv_fds",
        signal: "SIGHUP SIGCHLD SIGKILL SIGSTOP pthread_sigmask",
        mmap: "MAP_SHARED MAP_PRIVATE MAP_ANONYMOUS PROT_READ PROT_WRITE",
    }
    for module, names in missing.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = "win32"

    import nowait as nw

    from faulty import Quadratic  # in plain numpy: nothing is compiled

    problem = Quadratic(dimension=4, sigma=0.1)
    method = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
"""


def run_without_posix(code, folder):
    script = textwrap.dedent(WITHOUT_POSIX) + textwrap.dedent(code)
    command = [sys.executable, "-X", "warn_default_encoding", "-c", script]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_simulations_theory_and_reports_need_no_posix(tmp_path):
    printed = run_without_posix(
        """
        run = nw.simulate(problem, method, nw.speeds.Fixed([1.0, 2.0]), steps=40, seed=0)
        run.save("run")
        again = nw.load("run")
        assert (nw.replay(again.trace, problem, method, seed=0).last == run.last).all()
        sweep = nw.sweep(problem, method, nw.speeds.Fixed([1.0, 2.0]), stepsizes=[0.01, 0.1], seeds=[0], steps=20)
        nw.report({"first": run, "again": again}, "report.html")
        nw.theory.prescribe("convex", nw.theory.Constants(L=1.0, B=1.0, sigma=0.1), workers=2, steps=100)
        nw.plots.race({"first": [run]})
        print("done")
        """,
        tmp_path,
    )
    assert printed == "done\n"
    assert (tmp_path / "report.html").is_file()


def test_real_workers_say_what_they_need(tmp_path):
    printed = run_without_posix(
        """
        calls = [lambda: nw.train(problem, method, workers=2, steps=10), lambda: nw.resume("run", problem)]
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                print(error)
        """,
        tmp_path,
    )
    first, second = printed.splitlines()
    assert first == second
    assert first.startswith("nw.train needs Linux or macOS: Python on win32 has no os.posix_spawn, no os.killpg")
    assert "nw.simulate, nw.replay, nw.theory and reports work here" in first
