"""Every metric's name, unit and labels in one place, and the page that Prometheus reads.

The figures are counted at their events (`figures`) and read here when the page is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from txcore.records import ParkCode
from txcore.runtime import instrumentation as names
from txcore.sidecar.figures import Histogram
from txcore.sidecar.group import GroupRunner, GroupState

if TYPE_CHECKING:
    from txcore.outbox.relay import RelayStats

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its unit is the last part of its name, as Prometheus requires."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ("group",)


BUILD_INFO: Final = Metric("txcore_build_info", "gauge", "Always 1; the label holds the version.", ("version",))
GROUP_STATE: Final = Metric(
    "txcore_group_state", "gauge", "1 for the state the group is in, 0 for the others.", ("group", "state")
)
BROKER_UP: Final = Metric("txcore_broker_up", "gauge", "0 while the broker gives this checker no answer.")
SOURCE_UP: Final = Metric("txcore_source_up", "gauge", "0 while a database or callback is down.", ("group", "source"))
PARTITIONS: Final = Metric("txcore_partitions", "gauge", "Partitions that this checker owns.")
PENDING: Final = Metric("txcore_pending_halves", "gauge", "Undecided halves on this checker's partitions.")
OLDEST: Final = Metric("txcore_pending_oldest_age_seconds", "gauge", "Age of the oldest undecided half; 0 for none.")
UNRELEASED: Final = Metric(
    "txcore_unreleased_oldest_age_seconds",
    "gauge",
    "Since the decision of the committed half here that waits longest for its owner's release; 0 for none.",
)
HELD: Final = Metric(
    "txcore_held_order_keys", "gauge", "Parked halves here after which later halves of their order keys wait."
)
IN_HAND: Final = Metric("txcore_in_hand_halves", "gauge", "Halves that are being checked or finished now.")
CHECKPOINT_AGE: Final = Metric(
    "txcore_checkpoint_age_seconds",
    "gauge",
    "Since the partition's checkpoint was last up to date.",
    ("group", "partition"),
)
LOOP_LAG: Final = Metric("txcore_loop_lag_seconds", "gauge", "How late the checker's loop woke up last.")
STUCK_CALLS: Final = Metric(
    "txcore_stuck_calls", "gauge", "Questions that have passed their deadline and still occupy a thread."
)
HALVES: Final = Metric("txcore_halves_total", "counter", "Half records read, replays after a takeover included.")
CHECKS: Final = Metric(
    "txcore_checks_total",
    "counter",
    "Answers: COMMIT, ROLLBACK, UNKNOWN, PRUNED, or none (time-out, error, lock, unreachable).",
    ("group", "answer"),
)
CHECK_DURATION: Final = Metric("txcore_check_duration_seconds", "histogram", "Time of an answered question.")
ENDS: Final = Metric(
    "txcore_ends_total", "counter", "Halves that this checker finished: COMMIT or ROLLBACK.", ("group", "result")
)
VISIBLE: Final = Metric(
    "txcore_commit_to_visible_seconds",
    "histogram",
    "From the half's birth to its release, for those that this checker published.",
)
PARKED: Final = Metric("txcore_parked_total", "counter", "Halves that this checker parked.", ("group", "code"))
PARKED_NOW: Final = Metric(
    "txcore_parked_halves",
    "gauge",
    "Parked halves of the whole group, whichever checker owns them; none until its parked logs were read.",
    ("group", "code"),
)
CARRIED: Final = Metric("txcore_carried_total", "counter", "Halves carried forward.")
TAKEOVERS: Final = Metric("txcore_takeovers_total", "counter", "Partitions claimed.")
STOOD_DOWN: Final = Metric("txcore_stood_down_total", "counter", "Partitions lost to another checker.")
BROKER_ERRORS: Final = Metric(
    "txcore_broker_errors_total", "counter", "Calls to the broker that failed or are uncertain."
)
REFUSED: Final = Metric("txcore_release_refused_total", "counter", "Releases that a target refused.")
CONFLICTS: Final = Metric("txcore_op_conflicts_total", "counter", "Ends that contradict the first one; never expected.")
STALE: Final = Metric("txcore_stale_ops_total", "counter", "Records of replaced checkers that were ignored.")
POISON: Final = Metric("txcore_poison_total", "counter", "Records that could not be decoded.")
TRUNCATED: Final = Metric(
    "txcore_truncated_logs_total", "counter", "Logs that no longer reached back to their checkpoint."
)
WRONG_LISTENER: Final = Metric(
    "txcore_wrong_listener_total", "counter", "Times that no source here could be asked about a half's topics."
)
WRONG_DATABASE: Final = Metric(
    "txcore_wrong_database_total",
    "counter",
    "Checks that decided nothing, as the database here is not the producer's.",
)
BLOCKED: Final = Metric(
    "txcore_blocked_partitions", "gauge", "Partitions here that wait for an upgrade: a newer txcore wrote into them."
)
FAILING: Final = Metric(
    "txcore_failing_partitions", "gauge", "Partitions here whose log takes or gives back no records."
)
STARTS_FAILED: Final = Metric("txcore_group_starts_failed_total", "counter", "Failed tries to start the group.")
CALLBACKS: Final = Metric(
    "txcore_callback_requests_total",
    "counter",
    "Requests to the HTTP callback: answered, refused, malformed, timeout, unreachable.",
    ("group", "result"),
)

RELAYED: Final = Metric("txcore_relayed_total", "counter", "Messages of the message table that the relay has sent.")
RELAY_REFUSED: Final = Metric("txcore_relay_refused_total", "counter", "Tries to send one that its target refused.")
RELAY_PARKED: Final = Metric("txcore_relay_parked_total", "counter", "Messages of the table parked by this relay.")
RELAY_UP: Final = Metric(
    "txcore_relay_up",
    "gauge",
    "0 while no relay sends: broker or database down, or messages wait and none was seen for 60 s.",
)
TABLE_ROWS: Final = Metric(
    "txcore_table_rows",
    "gauge",
    "Messages in the message table: waiting, parked, or later.",
    ("group", "state"),
)
TABLE_OLDEST: Final = Metric("txcore_table_oldest_age_seconds", "gauge", "Age of the oldest that waits; 0 for none.")

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
BY_EVENT: Final = {
    CARRIED: names.HALF_CARRIED,
    TAKEOVERS: names.CHECKER_CLAIMED,
    STOOD_DOWN: names.CHECKER_STOOD_DOWN,
    REFUSED: names.RELEASE_REFUSED,
    CONFLICTS: names.OP_CONFLICT,
    STALE: names.OP_STALE,
    POISON: names.LOG_POISON,
    TRUNCATED: names.LOG_TRUNCATED,
    WRONG_LISTENER: names.CHECK_WRONG_LISTENER,
    WRONG_DATABASE: names.CHECK_WRONG_DATABASE,
}
PARK_CODES: Final = tuple(code.value for code in ParkCode if code is not ParkCode.CLOSED)
CALLBACK_RESULTS: Final = ("answered", "refused", "malformed", "timeout", "unreachable")


class Page(Collector):
    """Collects from the groups' runners. Thread safe."""

    def __init__(self, runners: Mapping[str, GroupRunner]) -> None:
        self._runners = runners
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return the page in Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Family]:
        """Yield every metric, each with all groups."""
        families = {metric: _family(metric) for metric in METRICS}
        _add(families[BUILD_INFO], (version("txcore"),), 1)
        for name, runner in list(self._runners.items()):
            for metric, labels, value in _samples(runner):
                _add(families[metric], (name, *labels), value)
        return families.values()


def _samples(runner: GroupRunner) -> Iterator[tuple[Metric, tuple[str, ...], Any]]:
    status, figures = runner.status(), runner.figures
    partitions = status.checker.partitions
    for state in GroupState:
        yield GROUP_STATE, (state.value,), int(status.state is state)
    is_running = status.state is GroupState.RUNNING
    yield BROKER_UP, (), int(is_running and not status.checker.broker)
    answers = runner.answers
    for circuit in () if answers is None else answers.circuits:
        yield SOURCE_UP, (circuit.name,), int(not circuit.reason)
    yield PARTITIONS, (), len(partitions)
    yield PENDING, (), sum(each.pending for each in partitions)
    yield OLDEST, (), max((each.oldest_age_s for each in partitions), default=0.0)
    yield UNRELEASED, (), max((each.unreleased_age_s for each in partitions), default=0.0)
    yield HELD, (), sum(each.held for each in partitions)
    yield IN_HAND, (), sum(each.in_hand for each in partitions)
    for each in partitions:
        yield CHECKPOINT_AGE, (str(each.partition),), each.checkpoint_age_s
    yield BLOCKED, (), sum(bool(each.blocked) for each in partitions)
    yield FAILING, (), len(status.checker.failing)
    yield LOOP_LAG, (), status.checker.lag_s
    yield STUCK_CALLS, (), status.checker.stuck_calls
    yield HALVES, (), runner.halves_read
    for metric, counter in ((CHECKS, figures.answers), (ENDS, figures.ends), (PARKED, figures.parked)):
        for label, count in list(counter.items()):
            yield metric, (label,), count
    parked = runner.parked
    if parked is not None:
        for code in dict.fromkeys((*PARK_CODES, *parked)):
            yield PARKED_NOW, (code,), parked.get(code, 0)
    if runner.plan.callback is not None:
        for result in CALLBACK_RESULTS:
            yield CALLBACKS, (result,), figures.callbacks[result]
    for metric, event in BY_EVENT.items():
        yield metric, (), figures.events[event]
    yield BROKER_ERRORS, (), figures.broker_errors
    yield STARTS_FAILED, (), figures.starts_failed
    yield CHECK_DURATION, (), figures.asked_s
    yield VISIBLE, (), figures.visible_s
    relay = runner.relay
    if relay is not None:
        yield from _relayed(relay)
    trouble = runner.relay_trouble
    if trouble is not None:
        yield RELAY_UP, (), int(not trouble)


def _relayed(relay: RelayStats) -> Iterator[tuple[Metric, tuple[str, ...], Any]]:
    yield RELAYED, (), relay.sent
    yield RELAY_REFUSED, (), relay.refused
    yield RELAY_PARKED, (), relay.parked
    if relay.waiting is not None:
        yield TABLE_ROWS, ("waiting",), relay.waiting.waiting
        yield TABLE_ROWS, ("parked",), relay.waiting.parked
        yield TABLE_ROWS, ("later",), relay.waiting.later
        yield TABLE_OLDEST, (), relay.waiting.oldest_age_s


def _family(metric: Metric) -> Family:
    kinds: dict[str, type[Family]] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[metric.kind](metric.name, metric.help, labels=metric.labels)  # type: ignore[call-arg]


def _add(family: Any, labels: tuple[str, ...], value: Any) -> None:
    if not isinstance(value, Histogram):
        family.add_metric(labels, value)
        return
    counts, total = value.read()
    bounds = [*(f"{bound:g}" for bound in value.bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, counts, strict=True)), total)
