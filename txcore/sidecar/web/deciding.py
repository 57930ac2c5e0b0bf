"""The console's forms for decisions: the effect, the reason, a typed confirmation; then the request."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from txcore.operator.plan import Step, Verb, fence_text, is_doubtful
from txcore.operator.selection import topics_in
from txcore.sidecar.web import views
from txcore.sidecar.web.desk import Decision, Desk, DeskError, canonical, confirmation_of
from txcore.sidecar.web.forms import Form
from txcore.sidecar.web.guard import Guard
from txcore.sidecar.web.pages import Pages

DONE: Final = {
    Verb.RESUME: "Resumed: the checker asks again, with a fresh budget of checks.",
    Verb.COMMIT: "The commit is requested; the log keeps the request. The checker executes it; this page shows it.",
    Verb.ROLLBACK: "The rollback is requested; the log keeps the request. The checker executes it; this page shows it.",
}


class Deciding(Form):
    """See the module."""

    def __init__(self, pages: Pages, guard: Guard, desk: Desk) -> None:
        super().__init__(pages, guard)
        self._desk = desk

    def routes(self, transaction: str) -> list[Route]:
        """Return the routes below a transaction's path."""
        path = f"{transaction}/{{verb}}"
        return self._routes(path)

    def _shown(self, request: Request) -> Response:
        return self._form(request, override="override" in request.query_params)

    def _decided(self, request: Request, sent: dict[str, str] | None) -> Response:
        verb = _verb(request)
        by, fields = self._sender(request, sent)
        decision = Decision(
            verb,
            by,
            " ".join(fields.get("reason", "").split()),
            fields.get("confirmation", ""),
            override="override" in fields,
            mark=fields.get("mark", ""),
        )
        group, identity = request.path_params["group"], request.path_params["id"]
        try:
            self._desk.decide(group, identity, decision)
        except DeskError as error:
            if error.status != 400:
                raise
            return self._form(request, override=decision.override, error=error, reason=decision.reason)
        return RedirectResponse(f"{views.transaction_path(group, identity)}?done={verb.value}", 303)

    def _form(self, request: Request, *, override: bool, error: DeskError | None = None, reason: str = "") -> Response:
        group, verb = request.path_params["group"], _verb(request)
        case = self._desk.case(group, request.path_params["id"])
        journey, trouble = case.journey, self._guard.trouble_with_change(request)
        if trouble:
            raise DeskError(403, trouble)
        override = override and verb is not Verb.RESUME
        each = case.plan(verb, override=override)
        title = f"{views.TITLES[verb]}{' against the fence' if override else ''}"
        return self._pages.show(
            request,
            "decide.html",
            title,
            error.status if error else 200,
            group=group,
            heading=title,
            kind=views.KINDS[verb],
            back=views.transaction_path(group, canonical(case)),
            transaction_id=canonical(case),
            state_name=journey.state,
            topics=", ".join(topics_in(journey)) or views.NOTHING,
            fence_text=fence_text(journey, case.asked.reading),
            consequence=views.plain(each.text),
            refused="" if each.step is Step.ACT else views.plain(each.text),
            doubt=sentence(is_doubtful(each)),
            override=override,
            confirmation=confirmation_of(journey.transaction_id, override=override),
            mark=case.mark,
            given=reason,
            notices=[{"kind": "bad", "text": str(error)}] if error else [],
        )


def sentence(text: str) -> str:
    """Return *text* as a sentence; "" stays "".

    A plan's texts follow a colon on the command line.
    """
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _verb(request: Request) -> Verb:
    try:
        return Verb(request.path_params["verb"])
    except ValueError as error:
        raise DeskError(404, "there is no such page") from error
