"""The commands and their options, in the order of ``nowait --help``. What they do is imported when they run."""

from nowait.cli.commands.bench import bench
from nowait.cli.commands.folders import check, report, watch
from nowait.cli.commands.methods import methods
from nowait.cli.commands.network import drain, serve, worker
from nowait.cli.commands.reproduce import reproduce
from nowait.cli.commands.studies import plan, race, sweep, tolerance, tune, whatif
from nowait.cli.commands.theory import certify, rule_pays, tables
from nowait.cli.commands.training import replay, resume, simulate, train

COMMANDS = (
    race,
    simulate,
    train,
    serve,
    worker,
    drain,
    resume,
    replay,
    check,
    watch,
    report,
    sweep,
    tune,
    tolerance,
    reproduce,
    plan,
    whatif,
    bench,
    methods,
    tables,
    certify,
    rule_pays,
)
