"""Signing in to the console and out again: a token begins a session, in a cookie that does not hold it."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from txcore.sidecar.web.desk import DeskError
from txcore.sidecar.web.guard import CONSOLE, LOG, SIGN_IN, Guard, address_of, is_from_here
from txcore.sidecar.web.pages import Pages, fields_of
from txcore.sidecar.web.sessions import COOKIE, LIFETIME_S, name_of
from txcore.sidecar.web.tokens import Token

SIGN_OUT: Final = f"{CONSOLE}/sign-out"


class Signing:
    """See the module."""

    def __init__(self, pages: Pages, guard: Guard) -> None:
        self._pages = pages
        self._guard = guard

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(SIGN_IN, self.sign_in, methods=["GET"]),
            Route(SIGN_IN, self.begin, methods=["POST"]),
            Route(SIGN_OUT, self.sign_out, methods=["POST"]),
        ]

    def sign_in(self, request: Request) -> Response:
        """Ask for name and token."""
        return self._pages.show(request, "sign_in.html", "Sign in", to=request.query_params.get("to", ""), name="")

    async def begin(self, request: Request) -> Response:
        """Begin a session, if the token is right."""
        fields = await fields_of(request)
        if fields is None or not is_from_here(request):
            return self._pages.trouble(request, DeskError(403, "this is not a form of this console"))
        name, to = name_of(fields.get("name", "")), fields.get("to", "")
        if not name:
            return self._again(request, "Give your name: it is recorded with every decision of yours.", to=to)
        if wait_s := self._guard.wait_s(request):
            answer = self._again(request, f"Too many wrong tokens: try again in {wait_s} s.", 429, to=to, name=name)
            answer.headers["retry-after"] = str(wait_s)
            return answer
        token = self._guard.find(request, fields.get("token", ""))
        if token is None:
            return self._again(request, "The token is wrong.", to=to, name=name)
        _report("http.signed_in", request, name, token)
        is_ours = to.startswith(f"{CONSOLE}/") and not to.startswith(SIGN_IN)
        answer = RedirectResponse(quote(to, safe="/%?=&") if is_ours else CONSOLE, 303)
        answer.set_cookie(
            COOKIE,
            self._guard.sessions.begin(token, name),
            max_age=LIFETIME_S,
            path=CONSOLE,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return answer

    async def sign_out(self, request: Request) -> Response:
        """End the session, also for a copy of its cookie."""
        fields = await fields_of(request)
        trouble = self._guard.trouble_with_form(request, (fields or {}).get("form_token", ""))
        if trouble:
            return self._pages.trouble(request, DeskError(403, trouble))
        session = self._guard.session(request)
        if session is not None:
            _report("http.signed_out", request, session.name, session.token)
        self._guard.end_session(request)
        answer = RedirectResponse(SIGN_IN, 303)
        answer.delete_cookie(COOKIE, path=CONSOLE)
        return answer

    def _again(self, request: Request, reason: str, status: int = 403, *, to: str, name: str = "") -> Response:
        notices = [{"kind": "bad", "text": reason}]
        return self._pages.show(request, "sign_in.html", "Sign in", status, notices=notices, to=to, name=name)


def _report(event: str, request: Request, name: str, token: Token) -> None:
    LOG.info(event, extra={"txcore": {"name": name, "token": token.name, "address": address_of(request)}})
