"""The doctor's checks that hold for every backend, on the port alone.

They write only TICK marks into the op logs of the examined group, which readers skip; a group that does not
exist is not created.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeVar

from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.doctor.op_tail import AUTHOR, CALL_TIMEOUT_S, OpTail
from txcore.errors import ConfigError, TxcoreError
from txcore.findings import (
    SKEW_WARN_MS,
    Check,
    Examination,
    Finding,
    Request,
    counted,
    duration,
    fail,
    ok,
    size,
    skewed,
    warn,
)
from txcore.history.journey import Journey
from txcore.history.log_survey import Survey, wait_for
from txcore.port import Backend
from txcore.records import RECORD_OVERHEAD_MAX

T = TypeVar("T")

PROBE_COUNT_MAX: Final = 100
PROBE_TIME_MAX_S: Final = 3.0
RELEASE_PARTS: Final = 4
"""Divisor of a release's time limit: a release is two appends in turn, each of which may take half of its share."""
LEADERS_MAX: Final = 16
"""Number of partitions whose leaders' clocks are compared."""
LEADER_MARKS: Final = 3
STALE_S: Final = 600.0
"""Seconds for which a running checker could have moved a checkpoint, after which the checkpoint counts as stale."""
UNRELEASED_S: Final = 60.0
"""Seconds for which a committed half may wait for the owner that releases it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Times of marks that were appended and read back one by one, in seconds, ascending; and the broker's clock.

    `skew_ms` is the broker's clock minus ours, known to `skew_error_ms`; None where the broker gives no time.
    """

    append_s: tuple[float, ...]
    read_back_s: tuple[float, ...]
    skew_ms: float | None
    skew_error_ms: float


@dataclass(frozen=True, slots=True)
class Aged:
    """One transaction, the age of its half's newest copy, and how long ago its last op was written."""

    journey: Journey
    age_s: float
    quiet_s: float


@dataclass(frozen=True, slots=True)
class PartitionView:
    """The contents of one partition after its checkpoint, halves in log order."""

    partition: int
    has_checkpoint: bool
    halves: tuple[Aged, ...]


@dataclass
class PortSubject:
    """One group of one opened backend. The times and the logs' contents are read once, and again after a failure."""

    backend: Backend
    request: Request
    clock: Clock
    randomness: Randomness = field(default_factory=system_randomness)

    def wait(self, future: Future[T]) -> T:
        """Return the result of a control call."""
        return wait_for(self.backend, future, CALL_TIMEOUT_S)

    def tail(self, partition: int) -> OpTail:
        """Return a reader of one op log, which writes marks into it."""
        return OpTail(self.backend, self.request.group, partition, self.clock, self.randomness)

    @cached_property
    def probe(self) -> Probe:
        """The times of marks that were appended and read back.

        Raises:
            TxcoreError: they cannot be appended or read.
        """
        clock = self.clock
        append_s: list[float] = []
        read_back_s: list[float] = []
        skews: list[tuple[float, float]] = []
        with closing(self.tail(0)) as tail:
            tail.skip()
            started_s = clock.elapsed_s()
            while len(append_s) < PROBE_COUNT_MAX and clock.elapsed_s() - started_s < PROBE_TIME_MAX_S:
                begun_s = clock.elapsed_s()
                stored_s, skew = tail.measure()
                append_s.append(stored_s)
                read_back_s.append(clock.elapsed_s() - begun_s)
                skews += [skew] if skew else []
        error_ms, skew_ms = min(skews, default=(0.0, None))
        return Probe(tuple(sorted(append_s)), tuple(sorted(read_back_s)), skew_ms, error_ms)

    @cached_property
    def leader_skews(self) -> list[tuple[float, float]]:
        """What the clock of each op log's leader differs from ours: the error, and the difference, in milliseconds.

        Raises:
            TxcoreError: marks cannot be appended or read.
        """
        found = []
        for partition in range(min(self.partition_count, LEADERS_MAX)):
            with closing(self.tail(partition)) as tail:
                tail.skip()
                measured = [tail.measure()[1] for _ in range(LEADER_MARKS)]
            found.append(min(skew for skew in measured if skew))
        return found

    @cached_property
    def partition_count(self) -> int:
        """The number of the group's partitions."""
        return self.wait(self.backend.ensure_group(self.request.group))

    @cached_property
    def views(self) -> list[PartitionView]:
        """The contents of the partitions after their checkpoints.

        Raises:
            TxcoreError: the logs cannot be read.
        """
        halves: defaultdict[int, dict[bytes, None]] = defaultdict(dict)  # ids in log order
        survey = Survey(
            self.backend,
            self.request.group,
            clock=self.clock,
            randomness=self.randomness,
            by=AUTHOR,
            from_checkpoint=True,
            on_half=lambda half, _: halves[half.partition].setdefault(half.transaction_id),
        )
        with closing(survey):
            survey.catch_up()
            journeys: dict[bytes, Journey] = {journey.transaction_id: journey for journey in survey.journeys()}
        now_ms = self.clock.wall_ms() + round(self.probe.skew_ms or 0)
        return [
            PartitionView(p, checkpoint is not None, tuple(_aged(journeys[identity], now_ms) for identity in halves[p]))
            for p, checkpoint in survey.checkpoints.items()
        ]

    def undecided(self) -> dict[bytes, bytes]:
        """Return the undecided halves, and which database each names; none where the logs could not be read."""
        try:
            halves = [aged.journey for view in self.views for aged in view.halves]
        except TxcoreError:
            return {}
        return {each.transaction_id: each.half.database for each in halves if each.is_pending and each.half is not None}


def port_examination(backend: Backend, request: Request, clock: Clock | None = None) -> Examination[PortSubject]:
    """Return the checks on an opened backend; the caller closes the backend."""
    return Examination(CHECKS, PortSubject(backend, request, clock or SystemClock()), lambda: None)


# -- the checks ---------------------------------------------------------------------------------------------------


def _group(subject: PortSubject) -> Finding:
    name = subject.request.group
    try:
        # Read first, because a read creates nothing, unlike ensure_group.
        subject.wait(subject.backend.load_checkpoint(name, 0))
    except ConfigError as error:
        return fail(
            f"group {name!r} does not exist yet, or is not readable ({error}); nothing of it was examined",
            f"check the spelling, or make it: txcore topics create --broker URL --group {name}",
        )
    try:
        count = subject.partition_count
    except ConfigError as error:
        return fail(str(error), "use the options with which the group was made, or a new group name")
    except TxcoreError as error:
        return fail(
            f"group {name!r} is there but cannot be verified: {error}", "the reason names it; see the broker's log"
        )
    return ok(f"group {name!r} is there with {counted(count, 'partition')}, as the URL's options make it")


def _probe_line(subject: PortSubject) -> Finding:
    try:
        probe = subject.probe
    except TxcoreError as error:
        return fail(
            f"marks cannot be appended and read back: {error}", "make the broker answer before all else; see its log"
        )
    p50, p99 = _percentile(probe.append_s, 50), _percentile(probe.append_s, 99)
    text = (
        f"{len(probe.append_s)} marks: append p50 {duration(p50)}, p99 {duration(p99)}; read back p50 "
        f"{duration(_percentile(probe.read_back_s, 50))}, p99 {duration(_percentile(probe.read_back_s, 99))}"
    )
    limit_s = subject.backend.capabilities.release_time_max_s
    if p99 > limit_s / RELEASE_PARTS:
        return warn(
            f"{text}: more than a quarter of the {duration(limit_s)} that a release may take, so that some will end as "
            "UNKNOWN",
            "a faster disk or network for the broker, or a longer delivery timeout in the backend's URL",
        )
    return ok(text)


def _clock(subject: PortSubject) -> Finding:
    probe = subject.probe
    if probe.skew_ms is None:
        return ok("the broker gives no time; ages run from when a checker first saw a half")
    text = f"the broker's clock is {probe.skew_ms / 1000:+.3f} s off this machine's (±{probe.skew_error_ms:.0f} ms)"
    return skewed(text, abs(probe.skew_ms) - probe.skew_error_ms, "shown ages and latencies are wrong by as much")


def _leader_clocks(subject: PortSubject) -> Finding:
    allowed_s = subject.backend.capabilities.clock_skew_max_s
    if subject.probe.skew_ms is None:
        return ok("the broker gives no time; ages run from when a checker first saw a half")
    skews = subject.leader_skews
    # Certainly apart: the least of the fastest clock, less the most of the slowest one.
    apart_s = (max(skew - error for error, skew in skews) - min(skew + error for error, skew in skews)) / 1000
    unknown = "not known for the half logs, as no mark of the doctor is in them"
    if subject.partition_count > len(skews):
        unknown += f", and for the op logs after the first {len(skews)}"
    text = f"the clocks of the leaders of {counted(len(skews), 'op log')} are {max(apart_s, 0):.3f} s apart; {unknown}"
    change = "run chronyd or ntpd on each broker; see: chronyc tracking"
    if apart_s * 1000 <= SKEW_WARN_MS:
        return ok(text)
    if apart_s <= allowed_s:
        return warn(f"{text}: checkers allow for {duration(allowed_s)}", change)
    excess = f"more than the {duration(allowed_s)} that checkers allow for"
    return fail(f"{text}: {excess}, so a half without a fence may be asked about too early", change)


def _retention(subject: PortSubject) -> Finding:
    kept_s, wanted_s = subject.backend.capabilities.half_retention_s, subject.request.retention_s
    if kept_s is None:
        return ok("halves are kept for ever")
    text = f"halves are kept for {duration(kept_s)}"
    if kept_s < wanted_s:
        return fail(
            f"{text}, less than twice the check horizon of {duration(subject.request.horizon_s)}: an undecided half "
            "may be dropped while its checker is down",
            f"half_retention_s={wanted_s:.0f} or more in the backend's URL, on a new group",
        )
    return ok(f"{text}, at least twice the check horizon of {duration(subject.request.horizon_s)}")


def _body_size(subject: PortSubject) -> Finding:
    limit, wanted = subject.backend.capabilities.body_size_max, subject.request.body_size
    # One half holds all messages of a transaction with their headers and the protocol's own fields.
    if wanted + RECORD_OVERHEAD_MAX > limit:
        return fail(
            f"a half may have {size(limit)}, too few for {size(wanted)} of messages and their envelope: such "
            "transactions are refused",
            f"body_size_max={wanted + RECORD_OVERHEAD_MAX} in the backend's URL, and the broker's own limit above it",
        )
    return ok(f"a half may have {size(limit)}; {size(wanted)} of messages fit")


def _checkpoint(subject: PortSubject) -> Finding:
    views = subject.views
    late = [(view, lag) for view in views if (lag := _lag(view)) is not None and lag.quiet_s > STALE_S]
    if not late:
        count = sum(view.has_checkpoint for view in views)
        return ok(f"{count} of {len(views)} partitions have a checkpoint, and none lags behind")
    view, oldest = max(late, key=lambda pair: pair[1].quiet_s)
    state = "the checkpoint has not passed" if view.has_checkpoint else "no checkpoint has been written, not even for"
    return warn(
        f"partition {view.partition}: {state} a half that was finished {duration(oldest.quiet_s)} ago "
        f"({len(late)} of {len(views)} partitions): no checker runs, or it is stuck",
        f"start a checker for group {subject.request.group!r}, and look at its log",
    )


def _pending(subject: PortSubject) -> Finding:
    halves = (aged for view in subject.views for aged in view.halves)
    pending = [aged for aged in halves if aged.journey.is_pending and not aged.journey.awaits_release]
    if not pending:
        return ok("no half is undecided")
    oldest_s = max(aged.age_s for aged in pending)
    text = f"{len(pending)} undecided, the oldest {duration(oldest_s)} old"
    change = f"start a checker for group {subject.request.group!r}; see why its listener or database does not answer"
    kept_s = subject.backend.capabilities.half_retention_s
    if kept_s is not None and oldest_s > kept_s / 2:
        return fail(f"{text}, more than half of the {duration(kept_s)} for which it is kept", change)
    if oldest_s > subject.request.horizon_s:
        return warn(f"{text}, more than the check horizon of {duration(subject.request.horizon_s)}", change)
    return ok(text)


def _unreleased(subject: PortSubject) -> Finding:
    waiting = [aged for view in subject.views for aged in view.halves if aged.journey.awaits_release]
    late = [aged for aged in waiting if aged.journey.is_pending and aged.quiet_s > UNRELEASED_S]
    parked = {_order_of(aged.journey) for view in subject.views for aged in view.halves if aged.journey.is_parked}
    held = [aged for aged in late if _order_of(aged.journey) in parked - {None}]
    if held and len(held) == len(late):
        return warn(
            f"{len(held)} committed halves wait for the end of a parked half of their order key",
            f"txcore parked --group {subject.request.group} lists it; resume it, or decide",
        )
    if not late:
        return ok(f"{len(waiting)} committed halves wait for the checker that releases them")
    oldest_s = max(aged.quiet_s for aged in late)
    return warn(
        f"{len(late)} committed halves wait for their release, the oldest for {duration(oldest_s)}: nothing of them is "
        "delivered",
        f"start a checker for group {subject.request.group!r}, or see what holds it up",
    )


def _order_of(journey: Journey) -> tuple[int, bytes] | None:
    """Return partition and order key of a half; None for one without an order key."""
    half = journey.any_half
    return (journey.partition, half.order_key) if half is not None and half.order_key else None


CHECKS: Final = (
    Check("port.group", "the group exists, with the settings of the URL's options", _group),
    Check("port.probe", "marks are appended and read back in time", _probe_line, needs="port.group"),
    Check("port.clock", "the broker's clock is this machine's", _clock, needs="port.probe"),
    Check("port.leader-clocks", "the brokers' clocks agree", _leader_clocks, needs="port.probe"),
    Check("port.retention", "halves are kept for twice the check horizon", _retention),
    Check("port.body-size", "one transaction's messages fit into a half", _body_size),
    Check("port.checkpoint", "checkpoints follow the log", _checkpoint, needs="port.probe"),
    Check("port.pending", "no half is undecided for long", _pending, needs="port.probe"),
    Check("port.unreleased", "no committed half waits long for its release", _unreleased, needs="port.probe"),
)


# -- measuring ----------------------------------------------------------------------------------------------------


def _aged(journey: Journey, now_ms: int) -> Aged:
    """Return its ages; retention counts from the newest copy, by the broker's time where it has one."""
    half = journey.halves[-1]
    born_ms = journey.half_times_ms[-1]
    if born_ms is None:
        born_ms = half.first_appended_ms or half.born_ms
    age_ms = max(0, now_ms - born_ms)
    written_ms = journey.ops[-1][1].at_ms if journey.ops else 0
    return Aged(journey, age_ms / 1000, min(age_ms, max(0, now_ms - written_ms)) / 1000)


def _lag(view: PartitionView) -> Aged | None:
    """Return the first half that the checkpoint could have passed: a finished one, if none before it holds that."""
    # The checkpoint names a half that was read; that half may itself be finished.
    head = view.halves[: 1 + view.has_checkpoint]
    is_passed = len(head) > view.has_checkpoint and not any(map(_holds_checkpoint, head))
    return head[-1] if is_passed else None


def _holds_checkpoint(aged: Aged) -> bool:
    """Return whether a half is undecided, or may hold its order key up."""
    journey = aged.journey
    return journey.is_pending or (journey.is_parked and _order_of(journey) is not None)


def _percentile(ascending: tuple[float, ...], percent: int) -> float:
    return ascending[min(len(ascending) - 1, len(ascending) * percent // 100)]
