"""A form of the console that changes something: it is shown, and its answer is checked before it is carried out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from txcore.sidecar.web.desk import NO_FORM, DeskError
from txcore.sidecar.web.guard import Guard
from txcore.sidecar.web.pages import Pages, fields_of


class Form(ABC):
    """One path of the console: GET shows the form, POST carries it out. A `DeskError` becomes its page."""

    def __init__(self, pages: Pages, guard: Guard) -> None:
        self._pages = pages
        self._guard = guard

    @abstractmethod
    def _shown(self, request: Request) -> Response:
        """Return the page with the empty form."""

    @abstractmethod
    def _decided(self, request: Request, sent: dict[str, str] | None) -> Response:
        """Carry out what was *sent*, after `_sender`, and return the next page's redirect."""

    def _routes(self, path: str) -> list[Route]:
        return [Route(path, self.ask, methods=["GET"]), Route(path, self.decide, methods=["POST"])]

    def ask(self, request: Request) -> Response:
        """Show the form."""
        try:
            return self._shown(request)
        except DeskError as error:
            return self._pages.trouble(request, error)

    async def decide(self, request: Request) -> Response:
        """Check the form's sender, and carry it out."""
        fields = await fields_of(request)
        return await run_in_threadpool(self._answer, request, fields)

    def _answer(self, request: Request, fields: dict[str, str] | None) -> Response:
        try:
            return self._decided(request, fields)
        except DeskError as error:
            return self._pages.trouble(request, error)

    def _sender(self, request: Request, sent: dict[str, str] | None) -> tuple[str, dict[str, str]]:
        """Return the operator of the session that was given this form, and its fields.

        Raises:
            DeskError: it is no form, or another session's, or this session may change nothing.
        """
        if sent is None:
            raise DeskError(413, NO_FORM)
        trouble = self._guard.trouble_with_form(request, sent.get("form_token", ""))
        trouble = trouble or self._guard.trouble_with_change(request)
        session = self._guard.session(request)
        if trouble or session is None:
            raise DeskError(403, trouble)
        return f"{session.name} (console)", sent
