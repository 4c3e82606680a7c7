"""The server: who is answered, and what."""

import http.client
import json

import pytest

import nowait as nw
from dashboard.written import WrittenRun, jobs_of_workers
from nowait.dashboard.access import Access, Answer
from nowait.dashboard.runs import id_of
from nowait.dashboard.site import Site
from nowait.engines.host_names import is_loopback

TOKEN = "a-token-for-tests"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one killed run."""
    path = tmp_path_factory.mktemp("runs")
    run = WrittenRun(path / "mine")
    run.write(jobs_of_workers([1.0, 2.0, 20.0], until=60.0))
    run.evaluate(5, 3.0, 0.5)
    run.close()
    return path


@pytest.fixture(scope="module")
def watcher(folder):
    with nw.watch(folder, token=TOKEN, open_browser=False) as watcher:
        ask(watcher, "/api/update")  # reads the folder
        yield watcher


def get(watcher, path, *, method="GET", cookie=None, **headers):
    """Return status, headers and body of the answer."""
    host, port = watcher._server.host_and_port
    connection = http.client.HTTPConnection(host, port, timeout=10)
    if cookie is not None:
        headers["Cookie"] = cookie
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def ask(watcher, path):
    status, _, body = get(watcher, path, cookie=f"{watcher._server.cookie}={TOKEN}")
    return status, json.loads(body)


# Who is answered


def test_the_address_has_a_token_that_sets_a_strict_cookie(watcher):
    assert watcher.url.startswith("http://127.0.0.1:")
    path = watcher.url.partition("/?")[2]
    status, headers, body = get(watcher, f"/?{path}")
    assert status == 200
    assert b"nowait watch" in body
    assert headers["Set-Cookie"] == f"{watcher._server.cookie}={TOKEN}; Path=/; HttpOnly; SameSite=Strict"


@pytest.mark.parametrize("path", ["/", "/watch.js", "/api/update", "/?token=", "/?token=wrong", "/api/update?token=é"])
def test_without_the_token_nothing_is_answered(watcher, path):
    path = path.replace("é", "%C3%A9")
    status, headers, body = get(watcher, path, cookie=f"{watcher._server.cookie}=wrong")
    assert status == 403
    assert headers["Set-Cookie"] is None
    assert b"token" in body
    assert TOKEN.encode() not in body


def test_the_cookie_of_another_port_is_not_accepted(watcher):
    assert get(watcher, "/", cookie=f"nowait-watch-1={TOKEN}")[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.7:80", "", "[bad"])
def test_a_request_for_another_host_is_refused_even_with_the_token(watcher, host):
    status, _, body = get(watcher, f"/?token={TOKEN}", Host=host)
    assert status == 421
    assert b"does not answer under that name" in body


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:5"])
def test_names_of_this_machine_are_accepted_with_any_port_for_forwarded_ones(watcher, host):
    assert get(watcher, f"/?token={TOKEN}", Host=host)[0] == 200


def test_only_get_is_answered(watcher):
    for method in ("POST", "PUT", "DELETE"):
        assert get(watcher, f"/?token={TOKEN}", method=method)[0] == 501


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/mine/config.json", "/watch.html", "/api", "/%2e%2e/x"])
def test_there_are_no_files_to_reach(watcher, path):
    status, answer = ask(watcher, path)
    assert (status, answer) == (404, {"error": "there is no such page"})


def test_answers_are_not_kept_and_load_nothing_from_elsewhere(watcher):
    _, headers, _ = get(watcher, f"/?token={TOKEN}")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert headers["Server"] == "nowait "


def test_the_page_and_its_script_name_no_other_host(watcher):
    for path in ("/", "/watch.css", "/watch.js"):
        body = get(watcher, f"{path}?token={TOKEN}")[2]
        assert b"//cdn" not in body
        assert b"http://" not in body
        assert b"https://" not in body


def test_a_server_for_other_machines_accepts_addresses_and_its_own_names_but_no_others():
    access = Access(None, "0.0.0.0", frozenset({"server"}))
    assert len(access.token) >= 24
    for host in ("192.168.0.7:80", "server:80", "localhost", "[fe80::1]:80"):
        assert access.check(host, access.token, None, "c") is Answer.ALLOWED
    assert access.check("evil.example", access.token, None, "c") is Answer.WRONG_HOST


def test_every_watcher_has_another_token_and_bad_ones_are_refused():
    assert Access(None, "127.0.0.1").token != Access(None, "127.0.0.1").token
    for token in ("short", "with spaces in it", "Ünicode-token"):
        with pytest.raises(ValueError, match="token must have at least 8 letters"):
            Access(token, "127.0.0.1")
    assert is_loopback("127.0.0.9")
    assert not is_loopback("10.0.0.1")


# What is answered


def test_an_update_lists_runs_and_gives_the_new_part_of_those_that_are_shown(watcher, folder):
    name = id_of(folder / "mine")
    status, first = ask(watcher, "/api/update")
    assert status == 200
    assert [(run["id"], run["name"], run["state"]) for run in first["runs"]] == [(name, "mine", "killed")]
    run = first["shown"][name]
    assert (run["straggler"]["worker"], run["loss"], run["facts"][-1]) == (2, 0.5, "seed 7")
    cursor = f"{name}.{run['epoch']}.1.{run['grid']['version']}"
    again = ask(watcher, f"/api/update?shown={cursor}")[1]["shown"][name]
    assert (again["points"]["step"], again["grid"]["steps"]) == ([], [])
    assert ask(watcher, "/api/update?shown=")[1]["shown"] == {}
    assert ask(watcher, "/api/update?shown=unknown")[1]["shown"] == {}


def test_an_interval_has_jobs_or_cells(watcher, folder, monkeypatch):
    path = f"/api/range?run={id_of(folder / 'mine')}&from=10&to=20"
    jobs = ask(watcher, path)[1]["jobs"]
    assert sorted(set(jobs["lane"])) == [0, 1, 2]
    assert jobs["used"] == [True] * len(jobs["lane"])
    monkeypatch.setattr("nowait.dashboard.payload.MOST_JOBS", 5)
    cells = ask(watcher, path)[1]
    assert cells["jobs"] is None
    assert [len(row) for row in cells["used"]] == [256] * 3
    monkeypatch.setattr("nowait.dashboard.follow_trace.MOST_ROWS", 5)
    coarse = ask(watcher, path)[1]
    assert coarse["jobs"] is None
    assert 0 < len(coarse["used"][0]) < 256


@pytest.mark.parametrize("query", ["shown=a.b", "shown=a.e.x.y"])
def test_a_cursor_that_is_not_one_is_refused(watcher, query):
    assert ask(watcher, f"/api/update?{query}")[0] == 400


@pytest.mark.parametrize(
    ("query", "status"), [("run=x&from=0&to=1", 404), ("run=x&from=1&to=0", 400), ("from=nan&to=1", 400)]
)
def test_an_interval_that_is_not_one_is_refused(watcher, query, status):
    assert ask(watcher, f"/api/range?{query}")[0] == status


@pytest.mark.parametrize(
    ("start", "end", "status"),
    [("-1e308", "1e308", 400), ("0", "1e308", 400), ("0", "1e-320", 400), ("0", "inf", 400), ("-1e99", "1e99", 200)],
)
def test_an_interval_whose_arithmetic_overflows_is_refused_and_no_error_of_the_server(
    watcher, folder, start, end, status
):
    ask(watcher, "/api/update")  # which finds the runs
    assert ask(watcher, f"/api/range?run={id_of(folder / 'mine')}&from={start}&to={end}")[0] == status


def test_an_error_in_the_server_is_answered_and_logged(watcher, monkeypatch, caplog):
    monkeypatch.setattr(Site, "reply", lambda *_: 1 / 0)
    status, answer = ask(watcher, "/api/update")
    assert (status, answer["error"]) == (500, "an error in the server: see its log")
    assert "ZeroDivisionError" in caplog.text
