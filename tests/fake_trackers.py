"""Stand-ins for the modules wandb, trackio and mlflow that keep what they are given."""

from types import SimpleNamespace

import nowait as nw


class Recorder(nw.loggers.Logger):
    """A logger that keeps everything in lists."""

    name = "a list"

    def __init__(self, identity=None):
        self.identity, self.openings, self.rows, self.states = identity, [], [], []

    def open(self, opening):
        self.openings.append(opening)
        return self.identity

    def log(self, values, step):
        self.rows.append((step, values))

    def close(self, state):
        self.states.append(state)


class FakeWandbRun:
    def __init__(self, module, settings):
        self._module = module
        self.settings, self.config, self.summary = settings, FakeConfig(settings.get("config") or {}), {}
        self.id = settings.get("id") or f"id-{len(module.runs)}"
        self.rows, self.x_axes, self.exit_codes = [], {}, []

    def define_metric(self, name, step_metric=None, hidden=None):
        self.x_axes[name] = step_metric

    def log(self, row):
        self.rows.append(row)

    def finish(self, exit_code=None):
        self.exit_codes.append(exit_code)
        self._module.run = None


class FakeConfig(dict):
    def update(self, values, allow_val_change=None):
        assert allow_val_change
        super().update(values)


class FakeWandb:
    def __init__(self):
        self.run, self.runs = None, []

    def init(self, project=None, name=None, config=None, id=None, resume=None, allow_val_change=None):  # noqa: A002
        settings = {key: value for key, value in locals().items() if key != "self" and value is not None}
        self.run = FakeWandbRun(self, settings)
        self.runs.append(self.run)
        return self.run


class FakeTrackioRun:
    def __init__(self, settings):
        self.settings, self.config, self.name = (
            settings,
            dict(settings.get("config") or {}),
            settings.get("name") or "a",
        )
        self.rows, self.alerts = [], []

    def log(self, values, step):
        self.rows.append((step, values))

    def alert(self, title, level):
        self.alerts.append((title, level))


class FakeTrackio:
    AlertLevel = SimpleNamespace(ERROR="error")

    def __init__(self):
        self.current, self.runs, self.finished = None, [], 0
        self.context_vars = SimpleNamespace(current_run=SimpleNamespace(get=lambda: self.current))

    def init(self, project, name=None, config=None, resume="never"):
        print("* Trackio says much")  # noqa: T201
        self.current = FakeTrackioRun({"project": project, "name": name, "config": config, "resume": resume})
        self.runs.append(self.current)
        return self.current

    def finish(self):
        self.finished, self.current = self.finished + 1, None


class FakeMLflow:
    def __init__(self):
        self.active, self.experiments, self.starts, self.params, self.rows, self.tags = None, [], [], {}, [], {}
        self.statuses = []

    def active_run(self):
        return self.active

    def set_experiment(self, name):
        self.experiments.append(name)

    def start_run(self, run_id=None, run_name=None, tags=None):
        self.starts.append({"run_id": run_id, "run_name": run_name, "tags": tags})
        self.active = SimpleNamespace(info=SimpleNamespace(run_id=run_id or f"run-{len(self.starts)}"))
        return self.active

    def log_params(self, params):
        self.params |= params

    def log_metrics(self, metrics, step, run_id, timestamp):
        self.rows.append((run_id, step, metrics))

    def set_tag(self, name, value):
        self.tags[name] = value

    def end_run(self, status):
        self.statuses.append(status)
        self.active = None
