"""Signing in to the console and out again: the token begins a session, in a cookie that does not hold it."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from txcore.sidecar.web.desk import DeskError
from txcore.sidecar.web.guard import CONSOLE, SIGN_IN, Guard, is_from_here
from txcore.sidecar.web.pages import Pages, fields_of
from txcore.sidecar.web.sessions import COOKIE, LIFETIME_S, name_of

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
        if not name or not self._guard.is_token(fields.get("token", "")):
            reason = "The token is wrong." if name else "Give your name: it is recorded with every decision of yours."
            notices = [{"kind": "bad", "text": reason}]
            return self._pages.show(request, "sign_in.html", "Sign in", 403, notices=notices, to=to, name=name)
        is_ours = to.startswith(f"{CONSOLE}/") and not to.startswith(SIGN_IN)
        answer = RedirectResponse(quote(to, safe="/%?=&") if is_ours else CONSOLE, 303)
        answer.set_cookie(
            COOKIE,
            self._guard.sessions.begin(name),
            max_age=LIFETIME_S,
            path=CONSOLE,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return answer

    async def sign_out(self, request: Request) -> Response:
        """Forget the cookie."""
        fields = await fields_of(request)
        trouble = self._guard.trouble_with_form(request, (fields or {}).get("form_token", ""))
        if trouble:
            return self._pages.trouble(request, DeskError(403, trouble))
        answer = RedirectResponse(SIGN_IN, 303)
        answer.delete_cookie(COOKIE, path=CONSOLE)
        return answer
