"""OpenTelemetry spans: a plugin of producers and checkers. The core does not depend on it.

A producer's transaction is one span, `txcore transaction`, in the caller's context; below it `txcore prepare`, `txcore
local` and `txcore release`. Its W3C trace context travels in the header `traceparent` of every message, inside the
half; so the later spans of a checker (`txcore check`, `txcore release`) and of the target's consumers belong to the
same trace. Every span has the attribute `txcore.transaction_id`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from txcore.errors import BackendNotInstalledError
from txcore.hookspecs import Event, hookimpl
from txcore.ids import TransactionId, id_text
from txcore.message import TRACEPARENT
from txcore.records import Half
from txcore.runtime import instrumentation as names
from txcore.runtime.instrumentation import trace_of

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise BackendNotInstalledError(
        "txcore.integrations.opentelemetry", error.name or "opentelemetry-api", "otel"
    ) from error

OPEN_MAX: Final = 10_000
"""Largest number of open transactions with a span; beyond it the oldest spans are ended."""
CHECKS_MAX: Final = 20
GOOD_ENDS: Final = frozenset({"ACCEPTED", "ALREADY_DONE", "VIA_TABLE"})
PROPAGATOR: Final = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _Check:
    began_ns: int
    ended_ns: int = 0
    answer: str = ""


class Tracing:
    """Makes spans of events; pass it as a plugin to producers, or set `checker.tracing`. Thread safe.

    Args:
        provider: The provider of the spans; None for the process's own, as OpenTelemetry's SDK has set it up.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("txcore", version("txcore"), provider)
        self._open: OrderedDict[bytes, Span] = OrderedDict()
        self._asked: OrderedDict[bytes, list[_Check]] = OrderedDict()
        self._lock = threading.Lock()

    @hookimpl
    def txcore_trace_headers(self, transaction_id: TransactionId) -> Mapping[str, str]:
        """Begin the transaction's span with its first message, and return its trace context."""
        with self._lock:
            span = self._open.get(transaction_id)
            if span is None:
                attributes = {"txcore.transaction_id": id_text(transaction_id)}
                span = self._tracer.start_span("txcore transaction", kind=SpanKind.PRODUCER, attributes=attributes)
                self._open[transaction_id] = span
                if len(self._open) > OPEN_MAX:
                    self._open.popitem(last=False)[1].end()
        headers: dict[str, str] = {}
        PROPAGATOR.inject(headers, trace.set_span_in_context(span))
        return headers

    @hookimpl
    def txcore_on_event(self, event: Event) -> None:
        """Make a span of *event*."""
        fields, now_ns = event.fields, time.time_ns()
        if event.name == names.TRANSACTION_PREPARED:
            is_durable = fields["status"] == "DURABLE"
            self._part("txcore prepare", fields, now_ns, "status", is_well=is_durable)
            if not is_durable:
                self._end(fields["transaction_id"], fields["status"], is_well=False)
        elif event.name == names.TRANSACTION_LOCAL:
            self._part("txcore local", fields, now_ns, "state", is_well=fields["state"] in {"COMMIT", "ROLLBACK"})
        elif event.name == names.TRANSACTION_ENDED:
            is_well = fields["state"] in GOOD_ENDS
            self._part("txcore release", fields, now_ns, "state", is_well=is_well)
            self._end(fields["transaction_id"], fields["state"], is_well=is_well)
        elif event.name == names.CHECK_ASKED:
            self._begin_check(fields["transaction_id"], now_ns)
        elif event.name in {names.CHECK_ANSWERED, names.CHECK_NO_ANSWER} and "transaction_id" in fields:
            self._end_check(fields["transaction_id"], now_ns, fields.get("answer", "none"))
        elif event.name == names.HALF_FINISHED:
            context = _context(fields["trace"])
            self._report_checks(fields["transaction_id"], context)
            began_ns = now_ns - round(fields["took_s"] * 1e9)
            attributes = {"txcore.end": fields["end"]}
            self._start("txcore release", fields["transaction_id"], context, began_ns, attributes).end(now_ns)

    @hookimpl
    def txcore_on_discard(self, half: Half | None, reason: str) -> None:
        """Report the checks of a half that was parked."""
        if half is not None:
            self._report_checks(half.transaction_id, _context(trace_of(half)), reason)

    def _part(self, name: str, fields: Mapping[str, Any], now_ns: int, key: str, *, is_well: bool) -> None:
        with self._lock:
            parent = self._open.get(fields["transaction_id"])
        context = Context() if parent is None else trace.set_span_in_context(parent, Context())
        began_ns = now_ns - round(fields["took_s"] * 1e9)
        attributes = {f"txcore.{each}": fields[each] for each in (key, "end") if each in fields}
        span = self._start(name, fields["transaction_id"], context, began_ns, attributes)
        if not is_well:
            span.set_status(Status(StatusCode.ERROR))
        span.end(now_ns)

    def _start(
        self, name: str, transaction_id: bytes, context: Context, began_ns: int, attributes: Mapping[str, str]
    ) -> Span:
        every = {"txcore.transaction_id": id_text(transaction_id), **attributes}
        return self._tracer.start_span(name, context, attributes=every, start_time=began_ns)

    def _end(self, transaction_id: bytes, state: str, *, is_well: bool) -> None:
        with self._lock:
            span = self._open.pop(transaction_id, None)
        if span is not None:
            span.set_attribute("txcore.state", state)
            if not is_well:
                span.set_status(Status(StatusCode.ERROR, state))
            span.end()

    def _begin_check(self, transaction_id: bytes, now_ns: int) -> None:
        with self._lock:
            checks = self._asked.setdefault(transaction_id, [])
            self._asked.move_to_end(transaction_id)
            checks.append(_Check(now_ns))
            del checks[:-CHECKS_MAX]
            if len(self._asked) > OPEN_MAX:
                self._asked.popitem(last=False)

    def _end_check(self, transaction_id: bytes, now_ns: int, answer: str) -> None:
        with self._lock:
            checks = self._asked.get(transaction_id)
            if checks and not checks[-1].ended_ns:
                checks[-1].ended_ns, checks[-1].answer = now_ns, answer

    def _report_checks(self, transaction_id: bytes, context: Context, parked: str = "") -> None:
        with self._lock:
            checks = self._asked.pop(transaction_id, [])
        for each in checks:
            attributes = {"txcore.answer": each.answer or "none"}
            if parked:
                attributes["txcore.parked"] = parked
            span = self._start("txcore check", transaction_id, context, each.began_ns, attributes)
            span.end(each.ended_ns or each.began_ns)


def _context(traceparent: str) -> Context:
    """Return the context that a half's messages carry; a new root without one."""
    return PROPAGATOR.extract({TRACEPARENT: traceparent}, Context())
