"""Who may read the pages: requests with the token, for a name of this server."""

from __future__ import annotations

import hmac
import secrets
from enum import Enum
from http.cookies import CookieError, SimpleCookie
from typing import final

from nowait.engines.host_names import HostNames

TOKEN_BYTES = 24


class Answer(Enum):
    """What becomes of a request."""

    ALLOWED = 200
    WRONG_HOST = 421
    NO_TOKEN = 403


@final
class Access:
    """Checks the name, and the token, of each request."""

    def __init__(self, token: str | None, host: str, names: frozenset[str] = frozenset()) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES) if token is None else checked_token(token)
        self._names = HostNames(host, names)

    def check(self, host: str | None, token: str | None, cookie: str | None, cookie_name: str) -> Answer:
        """Return whether a request with these headers, or with this token in its address, is answered."""
        if not self._names.include(host):
            return Answer.WRONG_HOST
        given = cookie_value(cookie, cookie_name) if token is None else token
        same = given is not None and hmac.compare_digest(given.encode(), self.token.encode())
        return Answer.ALLOWED if same else Answer.NO_TOKEN


def checked_token(token: str) -> str:
    """Return a token that can be part of an address and of a cookie; raise ValueError if it cannot."""
    is_plain = token.isascii() and all(letter.isalnum() or letter in "-_" for letter in token)
    if len(token) < 8 or not is_plain:
        raise ValueError(f"token must have at least 8 letters, digits, - or _, got {len(token)} characters")
    return token


def cookie_value(header: str | None, name: str) -> str | None:
    """Return a cookie from the header; None if it is not there."""
    try:
        found = SimpleCookie(header or "").get(name)
    except CookieError:
        return None
    return None if found is None else found.value
