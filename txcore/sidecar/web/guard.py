"""Who may ask: the bearer token, the `Host` header, requests that change something, and the headers of every answer.

* Health and metrics are open to whoever reaches the port.
* Everything else asks for the token where one is configured. Without one the endpoint listens on loopback only
  (the configuration sees to that), and only requests to a loopback name are answered, so that no web page can reach
  it through a name of its own (DNS rebinding).
* What changes state always asks for the token, and is no form that a foreign page could send.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
BODY_BYTES_MAX: Final = 64 << 10
SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """Answers whether a request may pass. Thread safe.

    Args:
        token: The bearer token; "" for none.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that may not read, or None."""
        if not self._token:
            host = request.headers.get("host", "")
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
            if name.lower() not in LOOPBACK_NAMES:
                return refused(403, "this endpoint answers to loopback names only; configure http.token_file")
            return None
        if not self.has_token(request):
            return refused(401, "the bearer token is missing or wrong", {"www-authenticate": "Bearer"})
        return None

    def refusal_to_change(self, request: Request) -> Response | None:
        """Return the answer to a request that may not change anything, or None."""
        if not self._token:
            return refused(403, "what changes state needs a token; configure http.token_file")
        if not self.has_token(request):
            return refused(401, "the bearer token is missing or wrong", {"www-authenticate": "Bearer"})
        if request.method != "POST":
            return refused(405, "state is changed by POST only", {"allow": "POST"})
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return refused(415, "the body must be application/json")
        if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            return refused(403, "requests from other sites are refused")
        return None

    def has_token(self, request: Request) -> bool:
        """Return whether the request carries the token; takes the same time for every wrong one."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode())


def refused(status: int, reason: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an answer with nothing but its reason."""
    return JSONResponse({"error": reason}, status, headers)


async def read_body(request: Request) -> bytes | None:
    """Return the request's body; None when it is larger than `BODY_BYTES_MAX`."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            return None
    return body


class GuardMiddleware:
    """Asks the guard before every path that is not open, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the class."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender = _with_headers(send)
        refusal = None if scope["path"] in OPEN_PATHS else self._guard.refusal(Request(scope))
        await (refusal or self._app)(scope, receive, sender)


def _with_headers(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name for name, _ in headers}
            headers += [(name, value) for name, value in SECURITY_HEADERS if name not in present]
            message = {**message, "headers": headers}
        await send(message)

    return sender
