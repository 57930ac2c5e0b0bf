"""The web console's routes: server-rendered pages for operators; every change is a form with a typed confirmation.

The guard checks each request; a change needs a session. No file comes from another host, and no script is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from txcore.errors import TxcoreError, UsageError
from txcore.operator.plan import Verb
from txcore.operator.selection import ALL, Filter
from txcore.port import Backend
from txcore.sidecar.metrics import PARK_CODES
from txcore.sidecar.web import views
from txcore.sidecar.web.deciding import DONE, Deciding, sentence
from txcore.sidecar.web.desk import Desk, DeskError, canonical
from txcore.sidecar.web.filters import Given
from txcore.sidecar.web.guard import CONSOLE, ROOT, Guard, rights_of
from txcore.sidecar.web.history import History
from txcore.sidecar.web.lists import Listing, Lists
from txcore.sidecar.web.pages import Files, Pages
from txcore.sidecar.web.resuming import Resuming, done_notices, resume_path
from txcore.sidecar.web.signing import Signing

if TYPE_CHECKING:
    from txcore.sidecar.group import GroupRunner
    from txcore.sidecar.process import Sidecar

ROWS: Final = 50
Reader = Callable[[Backend, str, Filter], Listing]
Handler = Callable[["Console", Request], Response]


def _answering(handler: Handler) -> Handler:
    """Turn a refusal of the desk into a page."""

    @wraps(handler)
    def answer(console: Console, request: Request) -> Response:
        try:
            return handler(console, request)
        except DeskError as error:
            return console.pages.trouble(request, error)

    return answer


class Console:
    """See the module."""

    def __init__(self, sidecar: Sidecar, guard: Guard, desk: Desk, lists: Lists, history: History) -> None:
        self._sidecar = sidecar
        self._guard = guard
        self._desk = desk
        self._lists = lists
        self._history = history
        self._has_bodies = sidecar.loaded.config.http.bodies
        self.pages = Pages(sidecar, guard)
        self._signing = Signing(self.pages, guard)
        self._deciding = Deciding(self.pages, guard, desk)
        self._resuming = Resuming(self.pages, guard, desk, lists)

    def routes(self) -> Sequence[BaseRoute]:
        """Return all routes below `/console`."""
        group = f"{CONSOLE}/groups/{{group}}"
        transaction = f"{group}/transactions/{{id}}"
        return [
            Route(ROOT, self.root),
            Route(CONSOLE, self.groups),
            *self._signing.routes(),
            Route(group, self.group),
            Route(f"{group}/pending", self.pending),
            Route(f"{group}/parked", self.parked),
            Route(f"{group}/decisions", self.decisions),
            *self._resuming.routes(group),
            Route(f"{group}/find", self.find),
            Route(transaction, self.transaction),
            *self._deciding.routes(transaction),
            Mount(f"{CONSOLE}/static", Files(packages=[("txcore.sidecar.web", "static")])),
            Route(f"{CONSOLE}/{{rest:path}}", self.nowhere),
        ]

    def root(self, _: Request) -> Response:
        """Redirect to the console, for operators that know host and port only."""
        return RedirectResponse(CONSOLE, 303)

    def groups(self, request: Request) -> Response:
        """Show every group of this process."""
        runners, rights = sorted(dict(self._sidecar.runners).items()), rights_of(request)
        found = [views.group_info(runner) for name, runner in runners if rights.covers(name)]
        return self.pages.show(request, "groups.html", "Groups", groups=found, is_live=True)

    @_answering
    def group(self, request: Request) -> Response:
        """Show one group: partitions and owners, rates and latencies, alerts."""
        name = request.path_params["group"]
        runner = self._desk.runner(name)
        chosen = request.query_params.get("range", "")
        chosen = chosen if chosen in views.RANGES else next(iter(views.RANGES))
        listing, trouble = self._listing(runner, self._lists.pending)
        range_s = views.RANGES[chosen][1]
        return self.pages.show(
            request,
            "group.html",
            name,
            group=name,
            info=views.group_info(runner),
            partitions=views.partition_rows(runner, listing, self._sidecar.clock.wall_ms()),
            charts=views.charts(self._history.steps(name, range_s, views.COLUMNS), range_s),
            ranges=[{"name": n, "text": t, "is_here": n == chosen} for n, (t, _) in views.RANGES.items()],
            alerts=views.alert_rows(list(runner.figures.alerts), name),
            trouble=trouble,
            is_live=True,
        )

    @_answering
    def pending(self, request: Request) -> Response:
        """Show the undecided transactions."""
        return self._rows(request, "pending.html", "Pending", self._lists.pending)

    @_answering
    def parked(self, request: Request) -> Response:
        """Show the parked transactions."""
        return self._rows(request, "parked.html", "Parked", self._lists.parked, codes=PARK_CODES)

    @_answering
    def decisions(self, request: Request) -> Response:
        """Show the operators' decisions, with name, time and reason."""
        group = request.path_params["group"]
        entries, count = self._desk.decisions(group)
        rows = [views.entry_row(group, each) for each in entries]
        return self.pages.show(request, "decisions.html", "Decisions", group=group, rows=rows, count=count)

    @_answering
    def find(self, request: Request) -> Response:
        """Redirect to the transaction whose id begins or ends with the given digits."""
        group = request.path_params["group"]
        case = self._desk.case(group, request.query_params.get("id", ""))
        return RedirectResponse(views.transaction_path(group, canonical(case)), 303)

    @_answering
    def transaction(self, request: Request) -> Response:
        """Show one transaction's whole journey."""
        group = request.path_params["group"]
        case = self._desk.case(group, request.path_params["id"])
        page = views.transaction_page(group, case, self._sidecar.clock.wall_ms(), has_bodies=self._has_bodies)
        done = request.query_params.get("done", "")
        notices = [{"kind": "ok", "text": DONE[Verb(done)]}] if done in {each.value for each in Verb} else []
        why_not = self._guard.trouble_with_change(request)
        title = f"Transaction {page['short_id']}"
        return self.pages.show(
            request,
            "transaction.html",
            title,
            group=group,
            notices=notices,
            can_act=not why_not,
            why_not=sentence(why_not),
            is_live=not case.journey.final,
            **page,
        )

    def nowhere(self, request: Request) -> Response:
        """Show that there is no such page."""
        if not request.path_params["rest"].strip("/"):
            return RedirectResponse(CONSOLE, 303)
        return self.pages.trouble(request, DeskError(404, "there is no such page"))

    def _rows(
        self, request: Request, template: str, title: str, read: Reader, *, codes: Sequence[str] = ()
    ) -> Response:
        group, given = request.path_params["group"], Given.of(request.query_params)
        runner = self._desk.runner(group)
        try:
            listing, trouble = self._listing(runner, read, given.chosen())
        except UsageError as error:
            listing, trouble = Listing(), f"The filter: {error}"
        text = request.query_params.get("from", "0")
        start = int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else 0
        rows = listing.rows[start : start + ROWS]
        now_ms = self._sidecar.clock.wall_ms()
        return self.pages.show(
            request,
            template,
            title,
            group=group,
            rows=[views.list_row(group, each, now_ms) for each in rows],
            count=listing.count,
            first=start + 1,
            last=start + len(rows),
            previous=f"?{given.query}&from={max(start - ROWS, 0)}" if start else "",
            next=f"?{given.query}&from={start + ROWS}" if start + ROWS < len(listing.rows) else "",
            trouble=trouble,
            given=given,
            codes=codes,
            resume_path=resume_path(group, given) if not self._guard.trouble_with_change(request) else "",
            notices=done_notices(request),
            is_live=True,
        )

    def _listing(self, runner: GroupRunner, read: Reader, chosen: Filter = ALL) -> tuple[Listing, str]:
        backend = runner.backend
        if backend is None:
            return Listing(), f"The logs cannot be read: the group is not running: {runner.status().reason}"
        try:
            return read(backend, runner.plan.name, chosen), ""
        except (TxcoreError, TimeoutError) as error:
            return Listing(), f"The logs cannot be read: {error or 'the broker did not answer in time'}"
