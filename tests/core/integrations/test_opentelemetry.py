"""Spans of producers and checkers: one trace per transaction, through the broker to the consumer."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import create_engine

from txcore import (
    BackendUnavailableError,
    Checker,
    CheckPolicy,
    HalfRefusedError,
    Limits,
    LocalTransactionState,
    Message,
    SqlFence,
    TransactionListener,
    TransactionProducer,
)
from txcore.clock import SystemClock
from txcore.ids import id_text
from txcore.integrations import opentelemetry as otel
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.message import TRACEPARENT

LIMITS = Limits(poll_s=0.001, idle_poll_s=0.001, retry_s=0.01)


class Answering(TransactionListener):
    """A listener that returns the configured answer."""

    def __init__(self, state=LocalTransactionState.COMMIT):
        self.state = state

    def execute_local_transaction(self, message, arg):
        return self.state

    def check_local_transaction(self, half):
        return self.state


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


@pytest.fixture
def broker(running_clock):
    return MemoryBroker(clock=running_clock)


@pytest.fixture
def make_producer(broker, running_clock, provider):
    def make(**settings):
        settings = {"plugins": [otel.Tracing(provider)], "partition_count": 1, "clock": running_clock} | settings
        return TransactionProducer(MemoryBackend(broker), "g", **settings)

    return make


def spans_of(exporter, name):
    return [span for span in exporter.get_finished_spans() if span.name == name]


def context_in(message):
    """Return trace and span id of a consumer's message."""
    _, trace_id, span_id, _ = message.headers[TRACEPARENT].split("-")
    return int(trace_id, 16), int(span_id, 16)


def test_transaction_is_a_span_below_the_publishers_span(make_producer, exporter, provider, broker):
    """Prepare, local and release are spans below the transaction's span, whose context the consumer gets."""
    tracer = trace.get_tracer("shop", tracer_provider=provider)
    with tracer.start_as_current_span("checkout") as checkout:
        result = make_producer(listener=Answering()).send_message_in_transaction(Message("t", b"b"))
    (whole,) = spans_of(exporter, "txcore transaction")
    assert checkout.get_span_context().span_id == whole.parent.span_id
    assert "ACCEPTED" == whole.attributes["txcore.state"]
    for name in ("prepare", "local", "release"):
        (part,) = spans_of(exporter, f"txcore {name}")
        assert whole.context.span_id == part.parent.span_id
        assert id_text(result.transaction_id) == part.attributes["txcore.transaction_id"]
        assert part.start_time <= part.end_time
    assert (whole.context.trace_id, whole.context.span_id) == context_in(broker.topics["t"][0])


def test_the_database_style_has_the_same_spans(make_producer, exporter, tmp_path):
    """In the database style, the span `local` lasts from BEGIN to COMMIT, around prepare."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    fence = SqlFence(engine)
    fence.create()
    with make_producer(fence=fence, clock=SystemClock()).transaction(engine) as transaction:
        transaction.publish(Message("t", b"b"))
    engine.dispose()
    assert {"txcore prepare", "txcore local", "txcore release", "txcore transaction"} == {
        span.name for span in exporter.get_finished_spans()
    }
    (local,), (prepare,) = spans_of(exporter, "txcore local"), spans_of(exporter, "txcore prepare")
    assert "COMMIT" == local.attributes["txcore.state"]
    assert local.start_time < prepare.start_time


def test_checker_continues_the_trace_of_a_dead_producer(make_producer, exporter, provider, broker, running_clock):
    """The half carries the trace, so check, release and consumer are in the dead producer's trace."""
    transaction = make_producer(policy=CheckPolicy(immunity_s=3)).begin()
    transaction.publish(Message("t", b"b"))
    transaction.prepare()
    running_clock.advance(10)
    checking = Checker(
        MemoryBackend(broker),
        "g",
        clock=running_clock,
        limits=LIMITS,
        listener=Answering(LocalTransactionState.COMMIT),
        plugins=[otel.Tracing(provider)],
    )
    checking.run_once()
    checking.stop()
    trace_id, span_id = context_in(broker.topics["t"][0])
    (check,), (release,) = spans_of(exporter, "txcore check"), spans_of(exporter, "txcore release")
    for span in (check, release):
        assert (trace_id, span_id) == (span.context.trace_id, span.parent.span_id)
        assert id_text(transaction.transaction_id) == span.attributes["txcore.transaction_id"]
    assert "COMMIT" == check.attributes["txcore.answer"]
    assert check.end_time <= release.end_time


def test_checks_of_a_parked_half_show_the_reason(make_producer, exporter, provider, broker, running_clock):
    """Each check of a parked half is one span with the reason."""
    transaction = make_producer(policy=CheckPolicy(immunity_s=3)).begin()
    transaction.publish(Message("t", b"b"))
    transaction.prepare()
    running_clock.advance(10)
    checking = Checker(
        MemoryBackend(broker),
        "g",
        clock=running_clock,
        limits=LIMITS,
        policy=CheckPolicy(interval_s=1, check_max=2),
        listener=Answering(LocalTransactionState.UNKNOWN),
        plugins=[otel.Tracing(provider)],
    )
    for _ in range(3):
        checking.run_once()
        running_clock.advance(2)
    checking.stop()
    checks = spans_of(exporter, "txcore check")
    assert ["UNKNOWN", "UNKNOWN"] == [span.attributes["txcore.answer"] for span in checks]
    assert {"2 checks were answered UNKNOWN"} == {span.attributes["txcore.parked"] for span in checks}


def test_all_messages_of_a_transaction_carry_one_context_and_a_header_of_ones_own_stays(make_producer, broker):
    """The messages of a transaction carry one context even without a span around it; a user's own header stays."""
    producer = make_producer(listener=Answering())
    transaction = producer.begin()
    transaction.publish(Message("t", b"1"))
    transaction.publish(Message("t", b"2", headers={"kind": "order"}))
    transaction.publish(Message("t", b"3", headers={TRACEPARENT: "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}))
    transaction.prepare()
    transaction.commit()
    first, second, third = broker.topics["t"]
    assert context_in(first) == context_in(second) != context_in(third)
    assert "order" == second.headers["kind"]
    assert int("1" * 32, 16) == context_in(third)[0]


def test_a_refused_half_ends_its_span_as_an_error(make_producer, exporter, broker, monkeypatch):
    """A refused half ends its spans as errors, and no span is left open."""
    transaction = make_producer().begin()
    transaction.publish(Message("t", b"b"))
    monkeypatch.setattr(broker, "refusal", lambda half: BackendUnavailableError("the disk is full"))
    with pytest.raises(HalfRefusedError, match="the disk is full"):
        transaction.prepare()
    (whole,), (prepare,) = spans_of(exporter, "txcore transaction"), spans_of(exporter, "txcore prepare")
    assert ("REFUSED", trace.StatusCode.ERROR) == (whole.attributes["txcore.state"], whole.status.status_code)
    assert trace.StatusCode.ERROR is prepare.status.status_code


def test_without_the_plugin_messages_carry_nothing_more(make_producer, broker):
    """Without the plugin, messages carry no trace header and no span is made."""
    make_producer(plugins=[], listener=Answering()).send_message_in_transaction(Message("t", b"b"))
    assert TRACEPARENT not in broker.topics["t"][0].headers


def test_failing_observer_stops_no_transaction(make_producer, broker, caplog):
    """A failing observer stops no transaction, and its failure is logged."""

    class Failing:
        @otel.hookimpl
        def txcore_trace_headers(self, transaction_id):
            raise RuntimeError("no headers")

        @otel.hookimpl
        def txcore_on_event(self, event):
            raise RuntimeError("no event")

    make_producer(plugins=[Failing()], listener=Answering()).send_message_in_transaction(Message("t", b"b"))
    assert 1 == len(broker.topics["t"])
    assert "plugin.failed" in [record.message for record in caplog.records]


def test_span_that_never_ends_is_dropped(provider, exporter, monkeypatch):
    """The oldest span is dropped first; memory is bounded."""
    monkeypatch.setattr(otel, "OPEN_MAX", 3)
    tracing = otel.Tracing(provider)
    for number in range(5):
        tracing.txcore_trace_headers(bytes([number]) * 16)
        tracing._begin_check(bytes([number]) * 16, 1)
    assert (3, 3, 2) == (len(tracing._open), len(tracing._asked), len(spans_of(exporter, "txcore transaction")))
