"""Zygotes of most tests are forked from a process that has imported the library, instead of a new interpreter for each.

A new interpreter imports NumPy and nowait in 0.3 s and PyTorch in 2 s: most of the processor time of a short run. The
process that forks, the *template*, runs this file as a script. A forked zygote executes the code that a new interpreter
would execute, with the same environment, folder and standard streams, in a session of its own, as a child of the test's
process. Tests with the mark ``new_interpreter`` start zygotes as users do, as does every test that runs a script.
"""

import ctypes
import fcntl
import importlib
import os
import pickle
import socket
import subprocess
import sys
from functools import cache

PR_SET_CHILD_SUBREAPER = 36
MANY_DESCRIPTORS = 1000
LONGEST_REQUEST = 1 << 20
READ_AT_IMPORT = ("MKL", "NUMBA", "NUMEXPR", "OMP", "OPENBLAS", "PYTHON", "VECLIB")
"""What the names of environment variables begin with that interpreters and libraries read when they start."""


class Forked:
    """A child process that a template forked: what ``Zygote`` uses of ``subprocess.Popen``."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def wait(self):
        """Wait until it ends, and return its exit status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class Templates:
    """The processes that fork zygotes: started when they are needed, one for each environment that libraries read.

    Has the names that ``nowait.fleet.host.launch`` uses of the module ``subprocess``.
    """

    DEVNULL = subprocess.DEVNULL

    def __init__(self):
        self.with_torch = False
        """True if the zygotes of the present test need PyTorch."""
        self._sockets, self._processes = {}, []

    def Popen(self, command, *, pass_fds, stdin, start_new_session, env):
        """Return a process that executes ``command[2]``, in a session of its own and without standard input."""
        return self.fork(command[2], env, *pass_fds)

    def fork(self, code, env, *descriptors):
        """Return a child process that executes code and has these descriptors. On macOS it is a new interpreter."""
        if sys.platform != "linux":
            command = [sys.executable, "-c", code]
            return subprocess.Popen(command, pass_fds=descriptors, stdin=self.DEVNULL, start_new_session=True, env=env)
        read_at_import = tuple(sorted(item for item in env.items() if item[0].startswith(READ_AT_IMPORT)))
        template = self._sockets.pop(read_at_import, None) or self._start(env)
        adopt_orphans(True)  # the template forks a process that forks the child and ends
        try:
            request = pickle.dumps((code, env, os.getcwd(), descriptors, self.with_torch))
            socket.send_fds(template, [request], [1, 2, *descriptors])
            process = int.from_bytes(template.recv(8), "little")
            assert process > 0, "the template has ended: see the standard error of the tests"
        except BaseException:  # a signal, and the answer is still to come
            template.close()
            raise
        finally:
            adopt_orphans(False)
        self._sockets[read_at_import] = template
        return Forked(process)

    def _start(self, env):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            options = {"stdin": self.DEVNULL, "start_new_session": True, "env": env, "cwd": "/"}
            self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], **options))
        return ours

    def process_ids(self):
        return {process.pid for process in self._processes}

    def close(self):
        """End the templates."""
        for connection in self._sockets.values():
            connection.close()
        for process in self._processes:
            process.wait()
        self.__init__()


def adopt_orphans(adopt):
    """Make this process the parent of orphaned descendants, or no longer."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopt))


TEMPLATES = Templates()


def children():
    """Return the ids of the children that this thread has started, without the templates."""
    with open("/proc/thread-self/children", encoding="ascii") as file:
        return [child for child in map(int, file.read().split()) if child not in TEMPLATES.process_ids()]


# The template


def serve(connection):
    """Fork a zygote for each request, until the other end is closed."""
    while True:
        request, received, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 8)
        if not request:
            return
        code, env, folder, descriptors, with_torch = pickle.loads(request)
        import_what_zygotes_need(with_torch, with_numba="modules=['nowait." in code or "warm=True" in code)
        process = fork(lambda: execute(code, env, folder, (1, 2, *descriptors), received))  # noqa: B023
        connection.send(process.to_bytes(8, "little"))
        for descriptor in received:
            os.close(descriptor)


@cache
def import_what_zygotes_need(with_torch, with_numba):
    """Import it here once. ``pytest`` is imported where a problem is defined in a module of tests."""
    for name in ("pytest", "nowait.fleet.host.zygote", *(["nowait.pytorch"] if with_torch else [])):
        importlib.import_module(name)
    if with_numba:
        importlib.import_module("nowait.problems").NoisyQuadratic(2).prepare()  # as zygotes do before they fork


def fork(run):
    """Return the id of a grandchild, in a session of its own, that calls ``run`` as soon as its parent has ended."""
    answer, told = os.pipe()
    gate, opener = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork() > 0:
            os._exit(0)
        os.setsid()
        os.close(opener)
        os.write(told, os.getpid().to_bytes(8, "little"))
        os.read(gate, 1)
        run()
        sys.exit(0)
    process = int.from_bytes(os.read(answer, 8), "little")
    os.waitpid(between, 0)
    for descriptor in (answer, told, gate, opener):
        os.close(descriptor)
    return process


def execute(code, env, folder, descriptors, received):
    """Execute code as a new interpreter would that had been given these file descriptors, under other numbers here."""
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, MANY_DESCRIPTORS) for descriptor in received]
    os.closerange(3, MANY_DESCRIPTORS)
    for source, target in zip(moved, descriptors, strict=True):
        os.dup2(source, target)
        os.close(source)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = ["-c"]
    main = sys.modules["__main__"] = type(sys)("__main__")
    exec(code, vars(main))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
