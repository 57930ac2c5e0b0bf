"""The application, from lists of routes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from txcore.sidecar.web.changes import change_routes
from txcore.sidecar.web.console import Console
from txcore.sidecar.web.desk import Desk
from txcore.sidecar.web.guard import Guard, GuardMiddleware, refused
from txcore.sidecar.web.history import History
from txcore.sidecar.web.lists import Lists
from txcore.sidecar.web.routes import api_routes, health_routes

if TYPE_CHECKING:
    from txcore.sidecar.process import Sidecar

LOG: Final = logging.getLogger("txcore.sidecar.web")


def make_app(sidecar: Sidecar, guard: Guard, more: Sequence[BaseRoute] = (), history: History | None = None) -> ASGIApp:
    """Return the application.

    Args:
        guard: Called before every path that is not open; routes that change state also call it,
            `guard.refusal_to_change(request)`.
        more: Further routes.
        history: The figures of the last hour; without one the console's charts stay empty.
    """
    lists, desk = Lists(sidecar.clock), Desk(sidecar)
    routes = [*health_routes(sidecar), *api_routes(sidecar, lists), *change_routes(desk, guard, sidecar.clock), *more]
    if sidecar.loaded.config.http.console:
        routes += Console(sidecar, guard, desk, lists, history or History(sidecar, sidecar.clock)).routes()
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _http_error, Exception: _server_error},
    )
    return GuardMiddleware(app, guard)  # outermost, so that answers to errors have the headers too


def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refused(error.status_code, error.detail, dict(error.headers or {}))


def _server_error(request: Request, error: Exception) -> Response:
    LOG.error("http.failed", exc_info=error, extra={"txcore": {"path": request.url.path[:200]}})
    return refused(500, "the checker could not answer; its log says why")
