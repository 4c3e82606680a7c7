"""Commands for workers that connect to the server from other machines."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep
from typing import Annotated

import typer

from nowait.cli import completion, values
from nowait.cli.exits import end, refused_as_options
from nowait.cli.new_folders import free_folder
from nowait.cli.options import (
    Audit,
    BatchSize,
    CheckpointEvery,
    CheckpointSeconds,
    Config,
    Encrypt,
    EvaluateEvery,
    Folder,
    Gradients,
    Json,
    KeepBest,
    KeyFile,
    Log,
    Loss,
    Method,
    MetricsPort,
    ProblemArgument,
    Schedule,
    Seconds,
    Seed,
    Slowdown,
    Steps,
    Stepsize,
    Target,
    TargetLoss,
    Update,
    chosen,
    host_and_port,
    listening,
)
from nowait.cli.texts import audit_of, port_of


def serve(  # noqa: PLR0917 (typer makes options of them)
    key_file: KeyFile,
    problem: ProblemArgument = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT to which workers connect.")] = "0.0.0.0:7070",
    method: Method = "asynchronous",
    stepsize: Stepsize = None,
    update: Update = None,
    schedule: Schedule = None,
    workers: Annotated[int, typer.Option(help="Begin when there is room for this many workers.", min=1)] = 1,
    most_workers: Annotated[
        int | None, typer.Option(help="Others join, up to this many.", min=1, show_default="64")
    ] = None,
    steps: Steps = None,
    gradients: Gradients = None,
    seconds: Seconds = None,
    target_loss: TargetLoss = None,
    target: Target = None,
    evaluate_every: EvaluateEvery = None,
    slowdown: Slowdown = None,
    audit: Audit = None,
    checkpoint_every: CheckpointEvery = None,
    checkpoint_seconds: CheckpointSeconds = None,
    keep_best: KeepBest = None,
    loss: Loss = "least-squares",
    batch_size: BatchSize = 16,
    encrypt: Encrypt = True,
    wire: Annotated[
        str | None,
        typer.Option(
            help="Send gradients as float32, float16, bfloat16, int8 or topk:SHARE.",
            show_default="as they are",
            autocompletion=completion.names("float32", "float16", "bfloat16", "int8", "topk:"),
        ),
    ] = None,
    points_wire: Annotated[
        str | None,
        typer.Option(
            help="Send params as float32, float16 or bfloat16.",
            show_default="as they are",
            autocompletion=completion.names("float32", "float16", "bfloat16"),
        ),
    ] = None,
    metrics_port: MetricsPort = None,
    log: Log = None,
    seed: Seed = 0,
    folder: Folder = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Train with workers that connect from other machines, with nowait worker; the rest is as in nowait train.

    The key file is made if it does not exist. Copy it to the machines of the workers. The file beside it that ends in
    .server has the private key of the server: no other machine needs it.

    Example: nowait serve mine.py:problem --key-file key --listen 0.0.0.0:7070 --steps 10000 --stepsize 0.05
    """
    from nowait.cli.loggers import loggers_of
    from nowait.cli.runs import RunSettings, run_train
    from nowait.cli.worker import show_messages
    from nowait.fleet.options import DEFAULT_WORKERS

    folder = free_folder(Path("runs/serve")) if folder is None else folder
    most = max(workers, DEFAULT_WORKERS[1]) if most_workers is None else most_workers
    with refused_as_options():
        engine = listening(listen, key_file, encrypt=encrypt, wire=wire, points_wire=points_wire)
    asked = chosen(RunSettings, locals() | {"workers": most})
    kept = {
        "checkpoint_every": checkpoint_every,
        "checkpoint_seconds": checkpoint_seconds,
        "keep_best": keep_best,
        "audit": audit_of(audit, otherwise=True),
        "metrics_port": port_of(metrics_port),
        "callbacks": loggers_of(log, folder),
    }
    show_messages()
    end(run_train(asked, {"engine": engine, "workers": (workers, most)}, slowdown, kept))


def worker(  # noqa: PLR0917 (typer makes options of them)
    connect: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    key_file: KeyFile,
    workers: Annotated[
        int | None, typer.Option(help="How many workers to run.", min=1, show_default="one per core")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each worker's libraries.", min=1, show_default="cores / workers")
    ] = None,
    retry_seconds: Annotated[
        float,
        typer.Option(
            help="How long to wait for the key file and to try to connect, also after the connection broke.",
            min=0.0,
            callback=values.finite,
        ),
    ] = 600.0,
    problem: Annotated[
        str | None,
        typer.Option(
            help="file.py:function, module:function or a LIBSVM file: make the problem here, as in serve.",
            show_default="the server sends it",
        ),
    ] = None,
    loss: Loss = "least-squares",
    batch_size: BatchSize = 16,
    stay: Annotated[bool, typer.Option("--stay", help="After the end of a run wait for the next one.")] = False,
    encrypt: Encrypt = True,
) -> None:
    """Run workers for a server on another machine, until its run is over.

    The problem comes from the server, and is executed: connect only to servers that you trust.

    Example: nowait worker --connect server.example.com:7070 --key-file key --workers 8
    """
    from nowait.cli.problems import load_problem
    from nowait.cli.worker import WorkerOptions, run_worker, show_messages
    from nowait.fleet.preparing import awaited_key, require_cryptography

    host, port = host_and_port(connect, "--connect")
    show_messages()
    require_cryptography()
    with refused_as_options():
        key = awaited_key(key_file, retry_seconds, monotonic, sleep)
        own = None if problem is None else load_problem(problem, loss, batch_size)
    run_worker(WorkerOptions(host, port, key, workers, threads, retry_seconds, stay, encrypt), own)


def drain(
    connect: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    key_file: KeyFile,
    name: Annotated[
        str | None, typer.Argument(help="The name of the machine.", show_default="only list the machines")
    ] = None,
    encrypt: Encrypt = True,
) -> None:
    """Let the workers of a machine deliver what they compute, and leave the run of nowait serve.

    It needs the key file and, beside it, the drain key file, which ends in .drain and which only the server has.

    Example: nowait drain node7 --connect server.example.com:7070 --key-file key
    """
    from nowait.cli.worker import run_drain
    from nowait.fleet.preparing import require_cryptography

    host, port = host_and_port(connect, "--connect")
    require_cryptography()
    from nowait.fleet.wire.secure import read_drain_key, read_host_key

    with refused_as_options():
        read_host_key(key_file)
        read_drain_key(key_file)
    run_drain(host, port, key_file, name, encrypt=encrypt)
