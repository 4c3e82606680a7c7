"""What the server answers: the page, its script and style, and JSON about runs."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, final

from nowait.dashboard.payload import Cursor, details_of, line_of, range_of
from nowait.dashboard.runs import MOST_SHOWN, RunTable
from nowait.reports.charts import chart_script, chart_style

SCRIPTS = ("store.js", "cards.js", "curves.js", "workers.js", "lanes.js", "watch.js")
HTML, CSS, SCRIPT, JSON = "text/html", "text/css", "text/javascript", "application/json"
DEFAULT_SHOWN = 6
"""Runs that a page shows until the user chooses others."""
SHORTEST_TIME, LONGEST_TIME = 1e-100, 1e100
"""Seconds of an interval that is zoomed: with shorter and longer ones the arithmetic of its columns overflows."""


class Reply(NamedTuple):
    """An answer to a request."""

    status: int
    kind: str
    body: bytes


@final
class Site:
    """Answers requests by path. Requests are answered one at a time, because they share what was read of the runs."""

    def __init__(self, runs: RunTable, wall: Callable[[], float] = time.time) -> None:
        self._runs = runs
        self._wall = wall
        self._lock = threading.Lock()
        self._paths: dict[str, Callable[[Mapping[str, str]], Reply]] = {
            "/": lambda _: Reply(200, HTML, page().encode()),
            "/watch.css": lambda _: Reply(200, CSS, style().encode()),
            "/watch.js": lambda _: Reply(200, SCRIPT, script().encode()),
            "/api/update": self._update,
            "/api/range": self._range,
        }

    def reply(self, path: str, query: Mapping[str, str]) -> Reply:
        """Return the answer for a path and its query."""
        answer = self._paths.get(path)
        if answer is None:
            return _error(404, "there is no such page")
        try:
            with self._lock:
                return answer(query)
        except _BadQueryError as error:
            return _error(400, str(error))

    def _update(self, query: Mapping[str, str]) -> Reply:
        wall = self._wall()
        self._runs.search(wall)
        cursors = cursors_of(query.get("shown", ""))
        if query.get("shown") is None:
            cursors = {name: Cursor() for name in self._newest()}
        followed = self._runs.followed(cursors, wall)
        return _json(
            {
                "watched": [str(folder) for folder in self._runs.folders],
                "most_shown": MOST_SHOWN,
                "runs": [line_of(name, listed, wall) for name, listed in self._runs.listed.items()],
                "shown": {name: details_of(run, cursors[name]) for name, run in followed.items()},
                "more": any(run.has_more for run in followed.values()),
            }
        )

    def _newest(self) -> list[str]:
        """Return the runs that a page shows first: those that are running, and the newest of the others."""
        runs = self._runs.listed
        order = sorted(runs, key=lambda name: (runs[name].state.value != "running", -runs[name].written))
        return order[:DEFAULT_SHOWN]

    def _range(self, query: Mapping[str, str]) -> Reply:
        start, end = _number(query, "from"), _number(query, "to")
        if not end - start > SHORTEST_TIME:
            raise _BadQueryError("the interval must end after it starts")
        name = query.get("run", "")
        run = self._runs.followed([name], self._wall()).get(name)
        if run is None:
            return _error(404, "there is no such run")
        return _json({"epoch": run.epoch} | range_of(run, start, end))


class _BadQueryError(ValueError):
    """The query of a request cannot be understood."""


def cursors_of(text: str) -> dict[str, Cursor]:
    """Read ``id.epoch.points.version,…``, which says what a page has of the runs that it shows."""
    cursors = {}
    for item in text.split(",") if text else []:
        name, *rest = item.split(".")
        try:
            epoch, points, version = rest or ("", "0", "-1")
            cursors[name] = Cursor(epoch, max(0, int(points)), int(version))
        except ValueError:
            raise _BadQueryError("shown must be a list of id.epoch.points.version") from None
    return cursors


def _number(query: Mapping[str, str], name: str) -> float:
    try:
        value = float(query.get(name, ""))
    except ValueError:
        value = math.nan
    if not abs(value) <= LONGEST_TIME:
        raise _BadQueryError(f"{name} must be a number of seconds, at most {LONGEST_TIME:g}")
    return value


def _json(values: Any, status: int = 200) -> Reply:
    return Reply(status, JSON, json.dumps(values, separators=(",", ":"), allow_nan=False).encode())


def _error(status: int, words: str) -> Reply:
    return _json({"error": words}, status)


@cache
def page() -> str:
    """Return the page."""
    return _asset("watch.html")


@cache
def style() -> str:
    """Return the style of the page and its charts."""
    return chart_style() + _asset("watch.css")


@cache
def script() -> str:
    """Return the script of the page and its charts, in one function."""
    parts = "\n".join(_asset(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{chart_script()}\n{parts}\n}})();\n'


def _asset(name: str) -> str:
    return resources.files("nowait.dashboard").joinpath("assets", name).read_text(encoding="utf-8")
