"""The console's form that resumes all parked transactions that a filter shows: count, reason, typed confirmation."""

from __future__ import annotations

from collections import Counter
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from txcore.errors import UsageError
from txcore.findings import counted
from txcore.operator import to_json
from txcore.operator.plan import Verb, is_doubtful
from txcore.operator.selection import Filter
from txcore.sidecar.web import views
from txcore.sidecar.web.deciding import sentence
from txcore.sidecar.web.desk import BULK_MAX, BulkDecision, Desk, DeskError
from txcore.sidecar.web.filters import Given
from txcore.sidecar.web.forms import Form
from txcore.sidecar.web.guard import Guard
from txcore.sidecar.web.lists import Lists
from txcore.sidecar.web.pages import Pages

RESUMED: Final = "resumed"
"""Name of the query's field with the number of resumed transactions."""


class Resuming(Form):
    """See the module."""

    def __init__(self, pages: Pages, guard: Guard, desk: Desk, lists: Lists) -> None:
        super().__init__(pages, guard)
        self._desk = desk
        self._lists = lists

    def routes(self, group: str) -> list[Route]:
        """Return the routes below a group's path."""
        path = f"{group}/parked/resume"
        return self._routes(path)

    def _shown(self, request: Request) -> Response:
        return self._form(request)

    def _decided(self, request: Request, sent: dict[str, str] | None) -> Response:
        by, fields = self._sender(request, sent)
        group, given = request.path_params["group"], Given.of(request.query_params)
        decision = BulkDecision(
            by,
            " ".join(fields.get("reason", "").split()),
            fields.get("confirmation", ""),
            fields.get("mark", ""),
        )
        try:
            count = self._desk.resume_all(group, _chosen(given), decision)
        except DeskError as error:
            if error.status != 400:
                raise
            return self._form(request, error=error, reason=decision.reason)
        finally:
            self._lists.forget(group)
        return RedirectResponse(f"{views.path_of(group, 'parked')}?{given.query}&{RESUMED}={count}", 303)

    def _form(self, request: Request, *, error: DeskError | None = None, reason: str = "") -> Response:
        group, given = request.path_params["group"], Given.of(request.query_params)
        trouble = self._guard.trouble_with_change(request)
        if trouble:
            raise DeskError(403, trouble)
        bulk = self._desk.bulk(group, _chosen(given))
        codes = Counter(to_json.park_code(each.journey) for each in bulk.doable)
        title = f"Resume {counted(len(bulk.doable), 'transaction')}"
        return self._pages.show(
            request,
            "resume.html",
            title,
            error.status if error else 200,
            group=group,
            heading=title,
            back=f"{views.path_of(group, 'parked')}?{given.query}",
            words=given.words,
            codes=", ".join(f"{count:,} {code}" for code, count in codes.most_common()) or views.NOTHING,
            doable=f"{len(bulk.doable):,}",
            count=f"{bulk.count:,}",
            left=bulk.count > BULK_MAX,
            refused=Counter(views.plain(each.text) for each in bulk.refused).most_common(),
            confirmation=bulk.confirmation,
            mark=bulk.mark,
            doubts=sorted({sentence(is_doubtful(each)) for each in bulk.doable} - {""}),
            kind=views.KINDS[Verb.RESUME],
            given=reason,
            notices=[{"kind": "bad", "text": str(error)}] if error else [],
        )


def resume_path(group: str, given: Given) -> str:
    """Return the page that resumes what the filter shows."""
    return f"{views.path_of(group, 'parked', 'resume')}?{given.query}"


def done_notices(request: Request) -> list[dict[str, str]]:
    """Return the notice about what was just resumed, for the list's page."""
    count = request.query_params.get(RESUMED, "")
    if not (count.isascii() and count.isdigit() and len(count) <= 6):
        return []
    text = f"{counted(int(count), 'transaction')} resumed: the checker asks again, or publishes what is missing."
    return [{"kind": "ok", "text": text}]


def _chosen(given: Given) -> Filter:
    try:
        return given.chosen()
    except UsageError as error:
        raise DeskError(400, str(error)) from error
