"""Serves the page over HTTP. Only GET, only with the token, and nothing but the page and JSON about the runs."""

from __future__ import annotations

import json
import logging
from typing import final
from urllib.parse import parse_qsl, urlsplit

from nowait.dashboard.access import Access, Answer
from nowait.dashboard.site import Reply, Site
from nowait.engines.http_server import QuietHandler, QuietServer

logger = logging.getLogger("nowait")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
REFUSED = {
    Answer.NO_TOKEN: "The token is missing or wrong. Open the whole address that nowait printed, with ?token=…",
    Answer.WRONG_HOST: "This server does not answer under that name. Open the address that nowait printed.",
}


@final
class WatchServer(QuietServer):
    """Answers for a site those who may read it."""

    def __init__(self, address: tuple[str, int], access: Access, site: Site) -> None:
        self.access = access
        self.site = site
        super().__init__(address, WatchHandler, "nowait-watch")

    @property
    def cookie(self) -> str:
        """The name of the cookie with the token. Browsers send cookies to all ports of a host."""
        return f"nowait-watch-{self.host_and_port[1]}"


@final
class WatchHandler(QuietHandler):
    """Answers one request."""

    server: WatchServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        access, cookie = self.server.access, self.server.cookie
        token = query.pop("token", None)
        answer = access.check(self.headers.get("Host"), token, self.headers.get("Cookie"), cookie)
        if answer is not Answer.ALLOWED:
            self._send(Reply(answer.value, "text/plain", f"{REFUSED[answer]}\n".encode()))
            return
        more = {}
        if token is not None:
            more["Set-Cookie"] = f"{cookie}={access.token}; Path=/; HttpOnly; SameSite=Strict"
        self._send(self._reply(parts.path, query), more)

    def _reply(self, path: str, query: dict[str, str]) -> Reply:
        try:
            return self.server.site.reply(path, query)
        except Exception:
            logger.exception("nowait watch: cannot answer %s", path)
            words = json.dumps({"error": "an error in the server: see its log"})
            return Reply(500, "application/json", words.encode())

    def _send(self, reply: Reply, more: dict[str, str] | None = None) -> None:
        self.answer(reply.status, f"{reply.kind}; charset=utf-8", reply.body, HEADERS | (more or {}))
