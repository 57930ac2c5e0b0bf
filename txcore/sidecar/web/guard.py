"""Access to the endpoint: token, session, `Host` header, changing requests, and the headers of every answer.

* Health and metrics are open to every client that reaches the port.
* Every other path needs a token where one is configured: as a bearer token, or in the console a session that was
  begun with it. Without a token the endpoint listens on loopback only (the configuration ensures that), and answers
  only requests to a loopback name, so that no web page can reach it through a name of its own (DNS rebinding).
* A token may be limited to some groups; the others do not exist for it.
* A request that changes state always needs an operator's token, and a form that a foreign page could not send: in the
  API, JSON with a bearer token; in the console, a form with a secret of the session, from this origin.
"""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.sidecar.web.sessions import COOKIE, Session, Sessions
from txcore.sidecar.web.tokens import LOOPBACK, Throttle, Token, find_token

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
ROOT: Final = "/"
CONSOLE: Final = "/console"
SIGN_IN: Final = f"{CONSOLE}/sign-in"
FILES: Final = f"{CONSOLE}/static/"
GROUP_PATHS: Final = ("/api/v1/groups/", f"{CONSOLE}/groups/")
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
BODY_BYTES_MAX: Final = 64 << 10
ANSWERS_MAX: Final = 20
"""Guarded requests that are answered at once; the others of `web.connections` stay free for open paths."""
NO_TOKEN: Final = "a change needs a token; configure http.token_file"  # noqa: S105 - a sentence
READ_ONLY: Final = "this token may only read"
TOO_MANY: Final = "too many wrong tokens came from this address; try again later"
LOG: Final = logging.getLogger("txcore.sidecar.web")
SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
SAME_SITE: Final = frozenset({"same-origin", "none"})


class Guard:
    """Answers whether a request may pass, and with which rights. Thread safe.

    Args:
        tokens: The tokens that are accepted; empty for none.
    """

    def __init__(
        self, tokens: Sequence[Token] = (), clock: Clock | None = None, randomness: Randomness | None = None
    ) -> None:
        clock = clock or SystemClock()
        self._tokens = tuple(tokens)
        self._throttle = Throttle(clock)
        self.sessions = Sessions(self._tokens, clock, randomness or system_randomness())

    @property
    def has_token(self) -> bool:
        """Whether a token is configured; without one no request can change state."""
        return bool(self._tokens)

    def refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request that may not read, or None; then `rights_of(request)` has its rights."""
        path = str(request.scope["path"])  # routes are chosen by it
        if is_public(path):
            return None if self._tokens or is_loopback(request) else refused(403, NOT_LOOPBACK)
        if not self._tokens:
            request.state.rights = LOOPBACK
            return None if is_loopback(request) else refused(403, NOT_LOOPBACK)
        is_console = path == CONSOLE or path.startswith(f"{CONSOLE}/")
        given, rights = _bearer(request), None
        if given:
            if wait_s := self.wait_s(request):
                return refused(429, TOO_MANY, {"retry-after": str(wait_s)})
            rights = self.find(request, given)
        if rights is None and is_console and (session := self.session(request)) is not None:
            rights = session.token
        if rights is not None:
            request.state.rights = rights
            group = _group_in(path)
            return None if not group or rights.covers(group) else refused(404, "this checker has no such group")
        if is_console and request.method in {"GET", "HEAD"}:
            return RedirectResponse(f"{SIGN_IN}?to={quote(path, safe='/')}", 303)
        return refused(401, "the bearer token is missing or wrong", {"www-authenticate": "Bearer"})

    def refusal_to_change(self, request: Request) -> Response | None:
        """Return the refusal of an API request that may not change state, or None. After `refusal` only."""
        if not self._tokens:
            return refused(403, NO_TOKEN)
        if not rights_of(request).can_decide:
            return refused(403, READ_ONLY)
        if request.method != "POST":
            return refused(405, "state is changed by POST only", {"allow": "POST"})
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return refused(415, "the body must be application/json")
        return None if is_from_here(request) else refused(403, FOREIGN)

    def trouble_with_form(self, request: Request, form_token: str) -> str:
        """Return the reason why a form of the console is not accepted; "" when it is."""
        if not self._tokens:
            return NO_TOKEN
        session = self.session(request)
        if session is None:
            return "the session is over; sign in again"
        if not is_from_here(request):
            return FOREIGN
        if not hmac.compare_digest(form_token.encode(), session.form_token.encode()):
            return "the form is of another session; open the page again"
        return ""

    def trouble_with_change(self, request: Request) -> str:
        """Return the reason why the person in the console may not change state; "" when the person may."""
        if not self._tokens:
            return NO_TOKEN
        session = self.session(request)
        if session is None:
            return "sign in to decide"
        return "" if session.token.can_decide else READ_ONLY

    def session(self, request: Request) -> Session | None:
        """Return the session of the signed-in person; None without one."""
        return self.sessions.read(request.cookies.get(COOKIE, ""))

    def end_session(self, request: Request) -> None:
        """End the session of the request, if it has one."""
        self.sessions.end(request.cookies.get(COOKIE, ""))

    def wait_s(self, request: Request) -> int:
        """Return the seconds until the sender may try a token again; 0 for now."""
        return math.ceil(self._throttle.wait_s(address_of(request)))

    def find(self, request: Request, given: str) -> Token | None:
        """Return the token that the sender gives; None for a wrong one, which is logged and counted."""
        address, token = address_of(request), find_token(self._tokens, given)
        if token is not None:
            self._throttle.succeeded(address)
            return token
        facts = {"address": address, "path": request.scope["path"][:200], "failures": self._throttle.failed(address)}
        LOG.warning("http.token_refused", extra={"txcore": facts})
        return None


def rights_of(request: Request) -> Token:
    """Return the token whose rights a request has that `Guard.refusal` let pass."""
    rights: Token = request.state.rights
    return rights


def address_of(request: Request) -> str:
    """Return the address of the sender; that of the last untrusted proxy, where `http.trusted_proxies` are set."""
    return request.client.host if request.client is not None else ""


def _group_in(path: str) -> str:
    """Return the group that a path is about; "" for none."""
    for prefix in GROUP_PATHS:
        if path.startswith(prefix):
            return path.removeprefix(prefix).partition("/")[0]
    return ""


NOT_LOOPBACK: Final = "this endpoint answers to loopback names only; configure http.token_file"
FOREIGN: Final = "requests from other sites are refused"


def is_public(path: str) -> bool:
    """Return whether *path* needs neither token nor session."""
    return path in OPEN_PATHS or path in {ROOT, SIGN_IN} or path.startswith(FILES)


def is_loopback(request: Request) -> bool:
    """Return whether the request was made to a loopback name."""
    host = request.headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.lower() in LOOPBACK_NAMES


def is_from_here(request: Request) -> bool:
    """Return whether the headers of a browser do not name another site as the sender of the request."""
    if request.headers.get("sec-fetch-site", "same-origin") not in SAME_SITE:
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower() != ""
    except ValueError:
        return False


def _bearer(request: Request) -> str:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given if scheme.lower() == "bearer" else ""


def refused(status: int, reason: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an answer that holds only its reason."""
    return JSONResponse({"error": reason}, status, headers)


async def read_body(request: Request) -> bytes | None:
    """Return the request's body; None when it is larger than `BODY_BYTES_MAX`, or the client left before its end."""
    body = b""
    with suppress(ClientDisconnect):
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                return None
        return body
    return None


class GuardMiddleware:
    """Calls the guard before every path that is not open, and adds the security headers to every answer.

    It answers `ANSWERS_MAX` requests at once on paths that are not public, and refuses further ones.
    """

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard
        self._answering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the class."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender, path = _with_headers(send), scope["path"]
        refusal = None if path in OPEN_PATHS else self._guard.refusal(Request(scope))
        if refusal is not None or is_public(path):
            await (refusal or self._app)(scope, receive, sender)
        else:
            await self._answer(scope, receive, sender)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._answering >= ANSWERS_MAX:
            await refused(503, f"{ANSWERS_MAX} other requests are being answered; try again")(scope, receive, send)
            return
        self._answering += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._answering -= 1


def _with_headers(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name for name, _ in headers}
            headers += [(name, value) for name, value in SECURITY_HEADERS if name not in present]
            message = {**message, "headers": headers}
        await send(message)

    return sender
