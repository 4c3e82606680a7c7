"""The options that commands share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from nowait.cli import completion, values
from nowait.cli.config import load_config
from nowait.cli.exits import WrongOptionError
from nowait.cli.problems import LOSSES
from nowait.fleet.options import NAMES as ENGINES
from nowait.fleet.options import Listen, RayCluster

T = TypeVar("T")


def chosen(kind: type[T], values: Mapping[str, Any]) -> T:
    """The settings of a command, a dataclass, from its options by their names."""
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def engine_of(engine: str, address: str | None) -> str | RayCluster:
    """Return the engine that two options name."""
    if address is None:
        return engine
    if engine != "ray":
        raise WrongOptionError(f"--address is for --engine ray, not for --engine {engine}")
    return RayCluster(address=address)


def host_and_port(text: str, option: str) -> tuple[str, int]:
    """Return the two parts of HOST:PORT; a wrong one ends the command with status 2."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 65_536):
        raise WrongOptionError(f"{option} must be HOST:PORT, as in {EXAMPLES[option]}, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


EXAMPLES = {"--listen": "0.0.0.0:7070", "--connect": "server.example.com:7070"}


def listening(
    listen: str, key_file: Path | None, *, encrypt: bool, wire: str | None = None, points_wire: str | None = None
) -> Listen:
    """Return the engine of workers that connect."""
    host, port = host_and_port(listen, "--listen")
    if key_file is None:
        raise WrongOptionError("--listen needs --key-file, the file with the key that workers need")
    return Listen(port=port, host=host, key_file=key_file, encrypt=encrypt, wire=wire, points_wire=points_wire)


DEVICES = ("cpu", "cuda")


def _number(words: str, **more: Any) -> Any:
    """Return an option for a finite number above 0."""
    return typer.Option(help=words, callback=values.above_zero, **more)


Problem = Annotated[
    str | None,
    typer.Option(help="A LIBSVM file, module:function or file.py:function.", show_default="the paper's least squares"),
]
Loss = Annotated[
    str,
    typer.Option(
        help="Of a LIBSVM file: least-squares or logistic.",
        callback=values.one_of(*LOSSES),
        autocompletion=completion.names(*LOSSES),
    ),
]
StoredLoss = Annotated[
    str | None,
    typer.Option(
        help="Of a LIBSVM file.",
        show_default="as stored",
        callback=values.one_of(*LOSSES),
        autocompletion=completion.names(*LOSSES),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Config = Annotated[
    Path | None,
    typer.Option(
        help="A TOML file with these options, outside tables or in one with the command's name.",
        callback=load_config,
        is_eager=True,
    ),
]
ProblemArgument = Annotated[
    str | None,
    typer.Argument(
        help="file.py:function, module:function or a LIBSVM file.", show_default="the paper's least squares"
    ),
]
Method = Annotated[
    str,
    typer.Option(
        help="A method and its parameters, such as ringmaster:max_delay=80; all are listed below. Or one of your own, "
        "file.py:Class.",
        callback=values.method,
        autocompletion=completion.method_names,
    ),
]
StoredMethod = Annotated[
    str | None,
    typer.Option(
        help="Of a run with a method of your own: the method as in nowait train, file.py:Class.",
        show_default="as stored in the run",
        callback=values.method,
        autocompletion=completion.method_names,
    ),
]
Update = Annotated[
    str | None,
    typer.Option(
        help="The update of the server, such as adamw:weight_decay=0.1 or torch.RAdam; all are listed below.",
        show_default="that of the method or the problem, or plain SGD",
        callback=values.update,
        autocompletion=completion.update_name,
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="Factors of the stepsize over the steps, with commas between them: warmup:steps=100,cosine:final=0.1.",
        show_default="constant",
        callback=values.schedule,
        autocompletion=completion.schedule_names,
    ),
]
Stepsize = Annotated[float | None, _number("γ.", show_default="half of 1/(ML), or of 1/L")]
Steps = Annotated[int | None, typer.Option(help="End after this many steps.", min=1)]
Gradients = Annotated[int | None, typer.Option(help="End after this many gradients.", min=1)]
Seconds = Annotated[float | None, _number("End after this many seconds.")]
TargetLoss = Annotated[float | None, typer.Option(help="End at this loss.", callback=values.finite)]
Target = Annotated[
    str | None,
    typer.Option(help="End when metrics reach values, such as accuracy=0.9 or perplexity<=20.", callback=values.target),
]
EvaluateEvery = Annotated[
    int | None, typer.Option(help="Steps between evaluations.", min=1, show_default="about 100 evaluations")
]
BatchSize = Annotated[int, typer.Option(help="Rows per gradient of a LIBSVM file or of the built-in problem.", min=1)]
Engine = Annotated[
    str,
    typer.Option(
        help="processes, on this machine, or ray.",
        callback=values.one_of(*ENGINES),
        autocompletion=completion.names(*ENGINES),
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="With --engine ray: auto or host:port.", show_default="a new local Ray"),
]
Slowdown = Annotated[
    str | None, typer.Option(help="Simulated stragglers, such as 0=100,3=2.", callback=values.slowdown)
]
Straggler = Annotated[float, _number("How many times slower one worker is.", min=1.0)]
CheckpointEvery = Annotated[int | None, typer.Option(help="Steps between checkpoints.", min=1)]
CheckpointSeconds = Annotated[float | None, _number("Seconds between checkpoints.")]
KeepBest = Annotated[str | None, typer.Option(help="Keep the params with the best loss, or metric of this name.")]
KeyFile = Annotated[Path, typer.Option(help="The file with the key that the server and its workers share.")]
Encrypt = Annotated[
    bool, typer.Option(help="Encrypt params and gradients, or only authenticate them. The same for server and workers.")
]
MetricsPort = Annotated[
    str | None,
    typer.Option(
        help="Show the run to Prometheus at this port of this machine, or at host:port.",
        show_default="no",
        callback=values.metrics_port,
    ),
]
_AUDIT = (
    "Let a second worker compute this share of the gradients as well, such as 0.001, and compare them; "
    "0.001:on_difference=leave-out goes on without a worker that computes wrongly, and off compares nothing."
)
Audit = Annotated[
    str | None,
    typer.Option(
        help=_AUDIT,
        show_default="the first of each process",
        callback=values.audit,
        autocompletion=completion.audit_words,
    ),
]
StoredAudit = Annotated[
    str | None,
    typer.Option(help=_AUDIT, show_default="as stored", callback=values.audit, autocompletion=completion.audit_words),
]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes",
        help="Go on with another method, update, output or problem than the run's, which can then not be replayed.",
    ),
]
Seed = Annotated[int, typer.Option(help="The seed of samples and speeds.", min=0, callback=values.seed)]
FirstSeed = Annotated[int, typer.Option(help="The first seed.", min=0, callback=values.seed)]
Folder = Annotated[
    Path | None,
    typer.Option(help="Where the run goes, a new folder.", show_default="runs/<command>-N", callback=values.new_folder),
]
FolderToTrain = Annotated[
    Path | None,
    typer.Option(
        help="Where the run goes, a new folder; with --resume that of the run.",
        show_default="runs/<command>-N",
        callback=values.folder_to_train,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Start the run in --folder, continue it if it has not finished, or show it if it has.",
        is_eager=True,
    ),
]
RunFolder = Annotated[
    Path,
    typer.Argument(help="The folder of a run.", callback=values.existing_folder, autocompletion=completion.run_folders),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        help="Write the run to tensorboard, wandb, mlflow or trackio, such as wandb:project=mine; may be repeated.",
        show_default="no",
        autocompletion=completion.names("tensorboard", "wandb", "mlflow", "trackio"),
    ),
]
