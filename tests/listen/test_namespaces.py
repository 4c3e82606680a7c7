"""A worker in a network namespace of its own, as on another machine, whose network fails and comes back."""

import contextlib
import os
import shutil
import subprocess

import pytest

pytest.importorskip("cryptography")

from staged import SECONDS, check_that_it_replays, lost, trained

from faulty import Faulty

SERVER, WORKER = "10.213.77.1", "10.213.77.2"
NETEM = ["netem", "delay", "2ms", "1ms", "loss", "1%"]


def command(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True).returncode == 0


@pytest.fixture
def namespace():
    """A namespace with a pair of network devices between it and this machine; delay and loss where tc has them."""
    if not shutil.which("ip") or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the ip command")
    name, ours, theirs = (f"nowait{kind}{os.getpid() % 10**7}" for kind in "nab")
    if not command("ip", "netns", "add", name, check=False):
        pytest.skip("this machine does not allow network namespaces")
    with contextlib.ExitStack() as stack:
        stack.callback(command, "ip", "netns", "del", name)
        command("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        command("ip", "addr", "add", f"{SERVER}/24", "dev", ours)
        command("ip", "-n", name, "addr", "add", f"{WORKER}/24", "dev", theirs)
        command("ip", "link", "set", ours, "up")
        command("ip", "-n", name, "link", "set", theirs, "up")
        for inside, device in (([], ours), (["-n", name], theirs)):
            command("tc", *inside, "qdisc", "add", "dev", device, "root", *NETEM, check=False)
        yield name, ours


def test_a_worker_on_another_machine_comes_back_after_its_network_failed(setting, when_listening, namespace):
    name, device = namespace

    def begin(port):
        setting.worker("--workers", "2", port=port, host=SERVER, prefix=["ip", "netns", "exec", name])

    def fail():
        command("ip", "link", "set", device, "down")
        return 2, 2, 2

    when_listening(begin)
    problem = Faulty(dimension=20_000)
    repair = lambda: command("ip", "link", "set", device, "up")  # noqa: E731
    engine = setting.engine(host=SERVER, heartbeat_seconds=3)
    run = trained([fail], problem, workers=2, engine=engine, when_left=repair)
    assert lost(run) == [0, 1]
    check_that_it_replays(run, problem)
    assert setting.workers[0].wait(SECONDS) == 0
    assert "the earlier processes continue" in setting.output()
