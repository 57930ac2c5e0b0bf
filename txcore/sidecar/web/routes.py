"""Health, metrics and the part of the JSON API that changes nothing.

Handlers that read logs run in threads. Health and metrics read memory only and need no thread, so that requests that
wait for a broker do not delay them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from txcore.errors import TxcoreError, UsageError
from txcore.operator.selection import Filter
from txcore.port import Backend
from txcore.sidecar import metrics
from txcore.sidecar.readiness import trouble_of
from txcore.sidecar.web.filters import Given
from txcore.sidecar.web.guard import refused, rights_of
from txcore.sidecar.web.lists import ROWS_MAX, Listing, Lists

if TYPE_CHECKING:
    from txcore.outbox.relay import RelayStats
    from txcore.sidecar.group import GroupRunner, GroupStatus
    from txcore.sidecar.process import Sidecar

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = ROWS_MAX


def health_routes(sidecar: Sidecar) -> list[Route]:
    """Return `/healthz` (do the loops turn?), `/readyz` (does every group work?) and `/metrics`.

    They read figures in memory and run on the event loop itself, so that pages that wait for a broker do not delay
    them by taking all threads.
    """
    page = metrics.Page(sidecar.runners)

    async def healthz(_: Request) -> Response:
        stuck = sidecar.stuck()
        return JSONResponse({"status": "stuck" if stuck else "ok", "reasons": stuck}, 503 if stuck else 200)

    async def readyz(request: Request) -> Response:
        unready, degraded = sidecar.unready(), sidecar.degraded()
        status = "unready" if unready else "degraded" if degraded else "ready"
        is_refused = bool(unready) or (bool(degraded) and "strict" in request.query_params)
        shown = {"status": status, "reasons": unready + degraded, "groups": sidecar.components()}
        return JSONResponse(shown, 503 if is_refused else 200)

    async def show_metrics(_: Request) -> Response:
        return Response(page.render(), media_type=metrics.CONTENT_TYPE)

    return [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", show_metrics),
    ]


def api_routes(sidecar: Sidecar, lists: Lists) -> list[Route]:
    """Return `/api/v1/groups` and the lists below it."""

    def groups(request: Request) -> Response:
        runners, rights = sorted(dict(sidecar.runners).items()), rights_of(request)
        return JSONResponse({"groups": [_group(runner) for name, runner in runners if rights.covers(name)]})

    def group(request: Request) -> Response:
        runner = sidecar.runners.get(request.path_params["group"])
        if runner is None:
            return refused(404, "this checker has no such group")
        partitions = [asdict(each) for each in runner.status().checker.partitions]
        alerts = [asdict(alert) for alert in list(runner.figures.alerts)]
        return JSONResponse({**_group(runner), "partitions": partitions, "alerts": alerts})

    def listing(kind: str, read: Callable[[Backend, str, Filter], Listing]) -> Callable[[Request], Response]:
        def show(request: Request) -> Response:
            runner = sidecar.runners.get(request.path_params["group"])
            limit = _limit(request)
            if runner is None:
                return refused(404, "this checker has no such group")
            if limit is None:
                return refused(400, f"limit is a whole number from 1 to {LIMIT_MAX}")
            backend = runner.backend
            if backend is None:
                return refused(503, f"the group is not running: {runner.status().reason}")
            try:
                chosen = Given.of(request.query_params).chosen()
            except UsageError as error:
                return refused(400, str(error))
            try:
                found = read(backend, runner.plan.name, chosen)
            except (TxcoreError, TimeoutError) as error:
                return refused(503, f"the logs cannot be read: {error}")
            return JSONResponse({"count": found.count, kind: found.rows[:limit]})

        return show

    return [
        Route("/api/v1/groups", groups),
        Route("/api/v1/groups/{group}", group),
        Route("/api/v1/groups/{group}/pending", listing("pending", lists.pending)),
        Route("/api/v1/groups/{group}/parked", listing("parked", lists.parked)),
    ]


def _table(relay: RelayStats | None) -> dict[str, Any] | None:
    """Return the message table and its relay here; None without a relay, or before the table was counted."""
    if relay is None or relay.waiting is None:
        return None
    counts = {"sent": relay.sent, "refused": relay.refused, "parked": relay.parked}
    return asdict(relay.waiting) | {"relay": {"trouble": trouble_of(relay), "newer": relay.newer} | counts}


def _limit(request: Request) -> int | None:
    text = request.query_params.get("limit", str(LIMIT_DEFAULT))
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        return None
    return int(text) if 1 <= int(text) <= LIMIT_MAX else None


def _group(runner: GroupRunner) -> dict[str, Any]:
    plan, figures = runner.plan, runner.figures
    status: GroupStatus = runner.status()
    partitions = status.checker.partitions
    return {
        "group": plan.name,
        "state": status.state.value,
        "reason": status.reason,
        "degraded": status.degraded,
        "troubles": status.troubles,
        "backend": plan.backend,
        "sources": plan.sources,
        "database": plan.database,
        "policy": msgspec.structs.asdict(plan.section.policy),
        "owned": [each.partition for each in partitions],
        "pending": sum(each.pending for each in partitions),
        "oldest_age_s": max((each.oldest_age_s for each in partitions), default=0.0),
        "halves": runner.halves_read,
        "checks": dict(figures.answers),
        "ends": dict(figures.ends),
        "parked": dict(figures.parked),
        "parked_now": runner.parked,
        "table": _table(runner.relay),
        "broker_errors": figures.broker_errors,
        "loop_lag_s": status.checker.lag_s,
    }
