"""The errors the core raises beside ``ValueError`` and ``TypeError``."""


class IllegalEvent(ValueError):  # noqa: N818 (an event is what is wrong)
    """An event that cannot happen in the server's state. Handling it has changed nothing."""


class WorkerFailedError(RuntimeError):
    """Worker processes cannot continue: the problem keeps raising, or every worker keeps dying."""


class BadWorkerError(RuntimeError):
    """One worker keeps sending gradients that cannot be used, or computes other ones than two workers that agree."""

    def __init__(self, worker: int, reason: str) -> None:
        super().__init__(f"worker {worker} {reason}")
        self.worker, self.reason = worker, reason
