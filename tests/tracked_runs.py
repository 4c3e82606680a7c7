"""Makes runs that are logged by the real wandb, trackio and mlflow, offline, and prints what they stored, as JSON.

A process of its own: the packages read the environment when they are imported, and start threads and processes.
"""

import contextlib
import importlib.util
import json
import os
import socket
import sys
import threading
from pathlib import Path

import nowait as nw

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
SPEEDS = nw.speeds.Fixed([1.0, 2.0])
BLOCK, HEADER = 32_768, 7
"""Of W&B's files: bytes of a block, and of the header of a file or a record."""
attempts = []
"""Addresses on other machines that were asked for."""


def main(folder: Path) -> None:
    os.environ |= {
        "DO_NOT_TRACK": "true",
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": (folder / "mlflow").as_uri(),
        "TRACKIO_DIR": str(folder / "trackio"),
        "WANDB_CONSOLE": "off",
        "WANDB_DIR": str(folder),
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }
    refuse_other_machines()
    trackers = [tracker for tracker in (Wandb, Trackio, MLflow) if importlib.util.find_spec(tracker.__name__.lower())]
    with contextlib.redirect_stdout(sys.stderr):
        made = [tracker(folder) for tracker in trackers]
        runs = {}
        for name, stepsize in (("finished", 0.1), ("diverged", 50.0)):
            callbacks = [tracker.logger(name) for tracker in made]
            method = nw.AsynchronousSGD(nw.Constant(stepsize))
            run = nw.simulate(PROBLEM, method, SPEEDS, steps=500, evaluate_every=100, callbacks=callbacks)
            runs[name] = {"steps": run.history.step.tolist(), "losses": run.history.loss.tolist()}
        found = {type(tracker).__name__: tracker.found() for tracker in made}
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    left = {
        "threads": [thread.name for thread in threading.enumerate()],
        "processes": children.read_text().split() if children.exists() else [],
    }
    print(json.dumps({"runs": runs, "found": found, "left": left, "attempts": attempts}))  # noqa: T201


def refuse_other_machines() -> None:
    connect = socket.socket.connect

    def refuse(own, address):
        if own.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            attempts.append(str(address))
            raise OSError(f"the test has no network, and {address} was asked for")
        return connect(own, address)

    def unknown(host, *arguments, **options):
        if host not in ("127.0.0.1", "::1", "localhost", None):
            attempts.append(str(host))
            raise socket.gaierror(f"the test has no network, and {host} was asked for")
        return look_up(host, *arguments, **options)

    look_up = socket.getaddrinfo
    socket.socket.connect, socket.getaddrinfo = refuse, unknown


class Wandb:
    def __init__(self, folder):
        import wandb

        self.wandb, self.folder = wandb, folder

    def logger(self, name):
        return nw.loggers.Wandb(self.wandb, project="mine", name=name)

    def found(self):
        self.wandb.teardown()
        runs = [self._run(path) for path in self.folder.glob("wandb/offline-run-*/*.wandb")]
        return {run["name"]: run for run in runs}

    def _run(self, path):
        found = {"rows": [], "summary": {}}
        for record in records_of(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                found["name"], found["project"] = record.run.display_name, record.run.project
                found["config"] = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                found["rows"].append({key_of(item): json.loads(item.value_json) for item in record.history.item})
            elif kind == "summary":
                found["summary"] |= {key_of(item): json.loads(item.value_json) for item in record.summary.update}
            elif kind == "exit":
                found["exit_code"] = record.exit.exit_code
        return found


def key_of(item):
    return item.key or "/".join(item.nested_key)


def records_of(path):
    """Yield the records of W&B's file: pieces in blocks, as in the log of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    data, at, record = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


class Trackio:
    def __init__(self, folder):
        import trackio

        self.trackio = trackio

    def logger(self, name):
        return nw.loggers.Trackio(self.trackio, project="mine", name=name, auto_log_cpu=False, auto_log_gpu=False)

    def found(self):
        from trackio.sqlite_storage import SQLiteStorage

        return {
            run: {
                "rows": [
                    {key: value for key, value in row.items() if key != "timestamp"}
                    for row in SQLiteStorage.get_logs("mine", run)
                ],
                "config": SQLiteStorage.get_run_config("mine", run),
                "alerts": [alert["title"] for alert in SQLiteStorage.get_alerts("mine", run)],
            }
            for run in SQLiteStorage.get_runs("mine")
        }


class MLflow:
    def __init__(self, folder):
        import mlflow

        self.mlflow = mlflow

    def logger(self, name):
        return nw.loggers.MLflow(self.mlflow, experiment="mine", run_name=name)

    def found(self):
        client = self.mlflow.MlflowClient()
        experiment = client.get_experiment_by_name("mine").experiment_id
        return {run.info.run_name: self._run(client, run) for run in client.search_runs([experiment])}

    def _run(self, client, run):
        return {
            "status": run.info.status,
            "params": run.data.params,
            "state": run.data.tags["nowait.state"],
            "metrics": {
                name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
                for name in run.data.metrics
            },
        }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
