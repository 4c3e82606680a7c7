"""Wrong options end every command with status 2 and one line, before any work starts."""

import typing

import pytest
from typer.main import get_command

import nowait as nw
from names import typed
from nowait.cli import app
from nowait.cli.commands import COMMANDS

NOWAIT = get_command(app)
"""Built once: that takes longer than a refusal."""


class WorkStartedError(BaseException):
    """A command did something before it refused its options."""


@pytest.fixture(autouse=True)
def no_work(monkeypatch, tmp_path):
    """Let every command fail that gets so far that it makes a problem or a run."""

    def start(*_, **__):
        raise WorkStartedError

    monkeypatch.chdir(tmp_path)
    for module, name in (
        (nw.problems.LeastSquares, "random"),
        (nw, "train"),
        (nw, "simulate"),
        (nw, "whatif"),
        (nw, "reproduce"),
        (nw, "watch"),
    ):
        monkeypatch.setattr(module, name, start)
    for name in ("bench.bench", "certify.certify", "tables.run_tables", "worker.run_worker", "worker.run_drain"):
        monkeypatch.setattr(f"nowait.cli.{name}", start)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a file").touch()
    (tmp_path / "file.txt").write_text("a text\n")
    key = tmp_path / "key"
    key.write_text(f"nowait-workers-key {'A' * 86}==\n")
    key.chmod(0o600)


NEEDED = {
    "simulate": ["--steps", "3"],
    "train": ["--steps", "3"],
    "serve": ["--steps", "3", "--key-file", "key"],
    "worker": ["--connect", "a:1", "--key-file", "key"],
    "drain": ["--connect", "a:1", "--key-file", "key"],
    "resume": ["run"],
    "replay": ["run"],
    "check": ["run"],
    "report": ["run"],
    "tune": ["--steps", "3"],
    "reproduce": ["ringmaster"],
    "plan": ["--workers", "2"],
    "whatif": ["alibaba:1"],
}
"""Options without which a command would be refused for another reason."""


@pytest.fixture
def refusal(capsys):
    """Return a function that returns the one line in which a command refuses its options."""

    def refuse(*arguments):
        with pytest.raises(SystemExit) as end:
            NOWAIT(list(arguments))
        assert end.value.code == 2
        printed = capsys.readouterr()
        line, hint = printed.err.splitlines()
        assert line.startswith("nowait: ")
        assert hint in ("Try: nowait --help", f"Try: nowait {arguments[0]} --help")
        assert not printed.out
        return line

    return refuse


def options_of(command):
    """Yield the options of a command and the types of their values."""
    hints = typing.get_type_hints(command, include_extras=True)
    for name, hint in hints.items():
        kinds = typing.get_args(hint)
        if name == "return" or not kinds:
            continue
        names = [text for text in getattr(kinds[1], "param_decls", None) or () if text.startswith("--")]
        if type(kinds[1]).__name__ == "OptionInfo":
            yield (names or [f"--{name.replace('_', '-')}"])[0], typing.get_args(kinds[0]) or (kinds[0],)


NUMBERS = [
    (typed(command), option, wrong)
    for command in COMMANDS
    for option, kinds in options_of(command)
    for kind, values in ((int, ("x", "1.5", "nan", "-1", "")), (float, ("x", "nan", "inf", "-inf", "")))
    if kind in kinds
    for wrong in values
]


def test_every_command_with_numbers_is_in_the_list():
    assert len(NUMBERS) > 300
    assert {"race", "train", "tune", "plan", "tables", "certify"} <= {command for command, _, _ in NUMBERS}


@pytest.mark.parametrize(("command", "option", "wrong"), NUMBERS)
def test_a_wrong_number_is_refused_before_any_work(command, option, wrong, refusal):
    given = list(NEEDED.get(command, []))
    if option in given:
        del given[given.index(option) : given.index(option) + 2]
    refusal(command, *given, option, wrong)


@pytest.mark.parametrize("command", [typed(command) for command in COMMANDS])
def test_an_unknown_option_names_the_nearest_one(command, refusal):
    line = refusal(command, *NEEDED.get(command, []), "--hlep")
    assert line == "nowait: there is no option --hlep; did you mean '--help'?"


def test_an_unknown_command_names_the_nearest_one(refusal):
    assert refusal("simualte") == "nowait: there is no command 'simualte'; did you mean 'simulate'?"
    assert refusal("xyz") == "nowait: there is no command 'xyz'"


METHOD_COMMANDS = ("race", "simulate", "train", "serve", "sweep", "tune")
METHODS = [
    ("ringmastr:max_delay=3", "there is no method 'ringmastr'; did you mean 'ringmaster'?"),
    ("RingmasterASG:max_delay=3", "there is no method 'RingmasterASG'; did you mean 'RingmasterASGD'?"),
    ("ringmaster:max_dely=3", "ringmaster has no parameter 'max_dely'; did you mean 'max_delay'?"),
    ("ringmaster", "ringmaster needs max_delay: write ringmaster:max_delay=..."),
    ("ringmaster:max_delay=-3", "max_delay must be an integer of at least 1, got -3"),
    ("ringmaster:max_delay=nan", "max_delay must be an integer of at least 1, got nan"),
    ("ringmaster:max_delay=3,max_delay=4", "max_delay is given twice in 'max_delay=3,max_delay=4'"),
    ("picky:radius=inf", "radius must be a finite number"),
    ("asynchronous:stepsize=adaptiv", "there is no stepsize rule 'adaptiv'; did you mean 'adaptive'?"),
    ("", "there is no method '': choose one of adaptiverevision, asynchronous"),
    ("nothing.py:Mine", "there is no file nothing.py"),
    ("mine.py", "a method of your own is given as file.py:name, got 'mine.py'"),
]


@pytest.mark.parametrize(("method", "message"), METHODS)
@pytest.mark.parametrize("command", [*METHOD_COMMANDS, "plan"])
def test_a_wrong_method_is_refused_before_any_work(command, method, message, refusal):
    assert message in refusal(command, *NEEDED.get(command, []), "--method", method)


RUNS = ("simulate", "train", "serve", "tune")
STEPPED = (*RUNS, "sweep")
WRONG = [
    *((command, ["--engine", "rey"], "did you mean 'ray'?") for command in ("race", "train", "tune", "resume")),
    *(
        (command, ["--loss", "logstic"], "--loss must be one of least-squares, logistic, got 'logstic'; did you mean")
        for command in (*METHOD_COMMANDS, "plan", "tolerance", "worker", "resume", "replay")
    ),
    *((command, ["--loss", "logistic"], "the built-in problem is least squares") for command in METHOD_COMMANDS),
    *(
        (command, ["--problem", "nofile"], "--problem: there is no file nofile")
        for command in ("race", "sweep", "plan", "worker")
    ),
    *((command, ["nofile"], "--problem: there is no file nofile") for command in (*RUNS, "tolerance")),
    *((command, ["nothing.py:make"], "there is no file nothing.py") for command in (*RUNS, "tolerance")),
    *((command, ["nothing:make"], "there is no module nothing") for command in (*RUNS, "tolerance")),
    *(
        (command, ["--folder", "run"], "run exists: choose another --folder")
        for command in ("race", "simulate", "train", "serve", "sweep", "tolerance", "reproduce", "whatif")
    ),
    *((command, ["--target", "accuracy"], "--target must be written like") for command in (*RUNS, "resume")),
    *((command, ["--target", "accuracy=nan"], "must be a finite number") for command in (*RUNS, "resume")),
    *((command, ["--target", ""], "--target must be written like") for command in (*RUNS, "resume")),
    *((command, ["--metrics-port", "70000"], "--metrics-port must be a port") for command in ("train", "serve")),
    *((command, ["--metrics-port", "here"], "--metrics-port must be a port") for command in ("train", "resume")),
    *((command, ["--slowdown", "0:3"], "--slowdown must be written like 0=100,3=2") for command in ("train", "serve")),
    *((command, ["--slowdown", ""], "--slowdown must be written like") for command in ("train", "serve")),
    *((command, ["--slowdown", "0=nan"], "--slowdown[0] must be a finite number") for command in ("train", "serve")),
    *((command, ["--slowdown", "0=0.5"], "--slowdown[0] must be at least 1") for command in ("train", "serve")),
    *((command, ["--slowdown", "0=2,0=3"], "--slowdown has a worker twice") for command in ("train", "serve")),
    *((command, ["--slowdown", "-1=2"], "--slowdown: a worker in slowdown must be") for command in ("train", "serve")),
    *(
        (command, ["--audit", "often"], "--audit must be written like 0.001, 0.001:on")
        for command in ("train", "serve")
    ),
    ("train", ["--audit", "2"], "the share of an audit must be at most 1, got 2"),
    ("train", ["--audit", "off:tolerance=1"], "--audit off compares nothing, so it has no parameters"),
    ("train", ["--audit", "0.1:tolerence=1"], "--audit has no parameter 'tolerence'; did you mean 'tolerance'?"),
    ("serve", ["--audit", "0.1:on_difference=leave"], "on_difference of --audit must be one of stop, leave-out"),
    ("train", ["--allow-changes"], "--allow-changes is for a run that goes on: give --resume and --folder as well"),
    ("train", ["--slowdown", "4=2"], "slowdown names worker 4, but the workers are 0 to 3"),
    ("train", ["--workers", "1", "--slowdown", "1=2,7=3"], "slowdown names worker 1, 7, but the only worker is 0"),
    ("serve", ["--slowdown", "64=2"], "slowdown names worker 64, but the workers are 0 to 63"),
    ("train", ["--engine", "ray", "--workers", "4", "--most-workers", "2"], "must be an integer of at least 4, got 2"),
    ("train", ["--address", "auto"], "--address is for --engine ray, not for --engine processes"),
    ("train", ["--most-workers", "8"], "--most-workers is for --engine ray, not for --engine processes"),
    ("race", ["--native", "--engine", "simulate"], "--native means real delays"),
    ("race", ["--method", "minibatch", "--method", "MinibatchSGD"], "--method has one of them twice"),
    *((command, ["--speeds", "1,x"], "--speeds must be numbers with commas") for command in ("simulate", "tune")),
    *((command, ["--speeds", "1,-1"], "must be a finite number above 0") for command in ("simulate", "tune")),
    *((command, ["--speeds", "1,nan"], "must be a finite number above 0") for command in ("simulate", "tune")),
    *((command, ["--speeds", ""], "--speeds must be numbers with commas") for command in ("simulate", "tune")),
    *((command, ["--speeds", "alibaba:9"], "there are jobs 1 to 4") for command in ("simulate", "tune")),
    ("simulate", ["--speeds", "file.txt"], "file.txt"),
    ("tune", ["--speeds", "1,2", "--workers", "3"], "--speeds simulates the workers"),
    ("simulate", ["--method", "ringmasterlmo"], "the stepsize of RingmasterLMO is the length of a step"),
    ("sweep", ["--stepsizes", "0.1,x"], "--stepsizes must be numbers with commas between them"),
    ("sweep", ["--stepsizes", ""], "--stepsizes must be numbers with commas between them"),
    ("sweep", ["--stepsizes", "0.1,-1"], "stepsize must be a finite number above 0"),
    ("sweep", ["--stepsizes", "0.1,nan"], "stepsize must be a finite number above 0"),
    ("sweep", ["--stepsizes", "0.1,0.1"], "--stepsizes has one of them twice"),
    ("sweep", ["--device", "cud"], "device must be 'cpu', 'cuda'"),
    *((command, ["--method", "nothing.py:Mine"], "there is no file nothing.py") for command in ("resume", "replay")),
    *((command, ["--update", "adm"], "there is no update 'adm'; did you mean 'adam'?") for command in STEPPED),
    ("sweep", ["--update", "adam:lr=0.1"], "adam has no parameter 'lr': the learning rate is the stepsize of the run"),
    *((command, ["--update", "adamw:wait=1"], "adamw has no parameter 'wait'") for command in STEPPED),
    *((command, ["--update", "adamw:weight_deca=1"], "did you mean 'weight_decay'?") for command in STEPPED),
    *((command, ["--update", "torch.AdmW"], "did you mean 'AdamW'?") for command in STEPPED),
    *((command, ["--update", "sgd,adam"], "--update has 2 updates, sgd and adam, but a run") for command in STEPPED),
    *((command, ["--update", ""], "there is no update ''") for command in STEPPED),
    *(
        (command, ["--schedule", "cosin"], "there is no schedule 'cosin'; did you mean 'cosine'?")
        for command in STEPPED
    ),
    *((command, ["--schedule", "cosine:finl=0"], "cosine has no parameter 'finl'; did you") for command in STEPPED),
    *((command, ["--schedule", "warmup"], "warmup needs steps: write warmup:steps=100") for command in STEPPED),
    *((command, ["--schedule", "warmup:steps=0"], "steps must be an integer of at least 1") for command in STEPPED),
    *((command, ["--schedule", ""], "there is no schedule ''") for command in STEPPED),
    ("sweep", ["--schedule", "cosine"], "cosine needs steps, because the run has none: write cosine:steps=1000"),
    ("simulate", ["--method", "orderedmomentum:beta=0.5", "--update", "adam"], "OrderedMomentum makes its own update"),
    ("simulate", ["--method", "auto:momentum=0.5", "--update", "adam"], "Auto has momentum 0.5 of its own, and Adam("),
    ("simulate", ["--method", "auto", "--update", "adam:scale=gradient"], "scales gradients instead of steps"),
    ("tolerance", ["--update", "adm"], "there is no update 'adm'; did you mean 'adam'?"),
    ("tolerance", ["--update", "sgd,muon:bta=0.9"], "muon has no parameter 'bta'; did you mean 'beta'?"),
    ("tolerance", ["--update", "momentum:beta=2"], "beta"),
    ("tolerance", ["--update", ""], "there is no update ''"),
    ("tolerance", ["--update", "sgd:scale=gradent"], "did you mean 'gradient'?"),
    ("tolerance", ["--pattern", "uniforn"], "did you mean 'uniform'?"),
    ("tolerance", ["--rule", "adaptve"], "there is no stepsize rule 'adaptve'; did you mean 'adaptive'?"),
    ("tolerance", ["--schedule", "cosin"], "did you mean 'cosine'?"),
    ("tolerance", ["--delays", "1,x"], "--delays must be whole numbers with commas between them"),
    ("tolerance", ["--delays", "1,0"], "a delay must be an integer of at least 1"),
    ("tolerance", ["--start", "sgd"], "'sgd' is not a parameter"),
    ("tolerance", ["--start", "sgd=-1"], "must be a finite number above 0"),
    ("reproduce", ["--quik"], "there is no option --quik; did you mean '--quick'?"),
    ("certify", ["--setting", "convx"], "did you mean 'convex'?"),
    ("certify", ["--pattern", "stragler"], "did you mean 'straggler'?"),
    ("certify", ["--figure", "figure.gif"], "--figure must end in .png, .pdf, .svg"),
    ("certify", ["--figure", "nowhere/figure.png"], "there is no folder nowhere for --figure"),
    ("tables", ["--seconds", "1,x"], "--seconds-per-gradient must be numbers with commas between them"),
    ("tables", ["--mu", "2"], "mu must not exceed L"),
    ("plan", ["--seconds", "1"], "give the speeds by one of"),
    ("whatif", ["--unit", "sec"], "--unit must be one of s, ms, us, ns, min, got 'sec'"),
    ("bench", ["--tier", "smal"], "the suite must be one of 'small', 'full', got 'smal'; did you mean 'small'?"),
    ("bench", ["--problem", "least-sqares"], "the problem must be one of"),
    ("bench", ["--method", "nothing.py:Mine"], "there is no file nothing.py"),
    ("bench", ["--method", "Mine"], "a method of your own is given as file.py:name"),
    ("bench", ["--method", "mine.py:"], "a method of your own is given as file.py:name, got 'mine.py:'"),
    ("plan", ["--method", "mine.py"], "a method of your own is given as file.py:name"),
    ("bench", ["--sample", "3"], "--sample and --only are for --verify"),
    ("bench", ["--verify", "nowhere"], "there is no folder nowhere"),
    ("serve", ["--listen", "7070"], "--listen must be HOST:PORT"),
    ("serve", ["--wire", "flot16"], "did you mean 'float16'?"),
    ("serve", ["--points-wire", "int9"], "must be None, 'float32', 'float16' or 'bfloat16'"),
    ("worker", ["--connect", "here"], "--connect must be HOST:PORT"),
    ("worker", ["--key-file", "file.txt"], "the key file file.txt has the mode"),
    ("drain", ["--key-file", "nofile"], "the key file nofile cannot be read"),
    ("resume", ["--listen", "a:1"], "--listen needs --key-file"),
    ("report", ["--out", "run"], "run is a folder: give --out a file"),
    ("report", ["--out", "nowhere/report.html"], "there is no folder nowhere for --out"),
    ("methods", ["ringmastr"], "stepsize rule, update or schedule 'ringmastr'; did you mean 'ringmaster'?"),
]


@pytest.mark.parametrize(("command", "options", "message"), WRONG, ids=str)
def test_a_wrong_value_is_refused_before_any_work(command, options, message, refusal):
    assert message in refusal(command, *NEEDED.get(command, []), *options)


@pytest.mark.parametrize("command", ["resume", "replay", "check", "report"])
@pytest.mark.parametrize(
    ("folder", "message"),
    [("nowhere", "there is no folder nowhere"), ("file.txt", "file.txt is a file, not the folder of a run")],
)
def test_a_folder_that_does_not_exist_is_a_wrong_option(command, folder, message, refusal):
    assert message in refusal(command, folder)


@pytest.mark.parametrize("command", [name for name in NEEDED if name != "reproduce"])
def test_a_command_without_what_it_needs_says_so(command, refusal):
    line = refusal(command)
    assert any(words in line for words in ("say when", "Missing option", "Missing argument", "give the speeds"))


@pytest.mark.parametrize("command", ["race", "simulate", "train", "serve", "tune", "sweep", "plan", "certify"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('enginee = "ray"', "has no option 'enginee'"),
        ("workers = 'x'", "--workers"),
        ("[trian]\nsteps = 3", "there is no command 'trian'; did you mean 'train'?"),
        ("= 3", "mine.toml is not a TOML file"),
    ],
)
def test_a_wrong_config_file_is_refused_before_any_work(command, text, message, tmp_path, refusal):
    (tmp_path / "mine.toml").write_text(text)
    assert message in refusal(command, *(["--key-file", "key"] if command == "serve" else []), "--config", "mine.toml")


@pytest.mark.parametrize("path", ["nowhere.toml", "run"])
def test_a_config_file_that_cannot_be_read_is_refused(path, refusal):
    assert path in refusal("train", "--config", path)


@pytest.mark.parametrize(
    "method", ["ringmaster:max_delay=80", "RingmasterASGD:max_delay=80", "RINGMASTER:max_delay=80,stepsize=Constant"]
)
def test_methods_may_be_named_by_their_class_and_in_any_case(method):
    with pytest.raises(WorkStartedError):
        NOWAIT(["simulate", "--steps", "3", "--method", method])


@pytest.mark.parametrize("update", ["Adam", "AMSGRAD", "HeLoCo,Sgd"])
def test_updates_may_be_named_by_their_class_and_in_any_case(update):
    with pytest.raises(WorkStartedError):
        NOWAIT(["tolerance", "--update", update])
