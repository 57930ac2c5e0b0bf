"""Repairs after an audit, without Spark: lost targets are published again from their half, stuck halves are parked.

A finding may be out of date, so each transaction is read again from the logs and its targets from their topics, before
anything is written. A target that leaked is never touched: a published message cannot be withdrawn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

import txcore
from txcore import wire
from txcore.audit.verdicts import Verdict
from txcore.clock import Clock, SystemClock
from txcore.config import Loaded
from txcore.errors import BackendTimeoutError, TxcoreError, UsageError
from txcore.findings import counted
from txcore.history.journey import Journey
from txcore.ids import TransactionId, id_text
from txcore.operator.operator import Operator
from txcore.port import Backend, SettlesEach
from txcore.records import HalfRecord, Op, OpKind, Outcome, ParkCode, Parked, Resolution, Status
from txcore_spark.looking import Look
from txcore_spark.store import Store

BY: Final = "audit-repair"
TIMEOUT_S: Final = 60.0
DONE: Final = "repaired.json"
REPAIRED: Final = (Verdict.LOST, Verdict.STUCK)
DOUBTED: Final = (Verdict.MISDECIDED, Verdict.CORRUPT, Verdict.LEAK)
"""Verdicts beside LOST with which the database vouches neither for the COMMIT nor for what the half holds."""


@dataclass(slots=True)
class Planned:
    """One repair, or the reason why none is possible."""

    transaction_id: bytes
    verdict: str
    what: str
    resolution: Resolution | None = None
    backend: str = ""


@dataclass(slots=True)
class _Waiting(SettlesEach):
    """A batch of one; implements `port.Batch`."""

    items: Sequence[Resolution]
    outcome: Outcome | None = None
    is_settled: threading.Event = field(default_factory=threading.Event)

    def settle(self, index: int, outcome: Outcome) -> None:  # noqa: ARG002 - there is only one
        """See `port.Batch.settle`."""
        self.outcome = outcome
        self.is_settled.set()


class Repairer:
    """Plans and makes the repairs of one run."""

    def __init__(self, loaded: Loaded, store: Store, run: int, *, clock: Clock | None = None) -> None:
        self._loaded = loaded
        self._store = store
        self._run = run
        self._manifest = store.manifest(run)
        self._clock = clock or SystemClock()
        self._stack = ExitStack()
        self._operators: dict[tuple[str, str], Operator] = {}
        self._backends: dict[str, Backend] = {}

    def close(self) -> None:
        """Close every backend."""
        self._stack.close()

    def plan(self, only: Collection[bytes] = (), count_max: int = 10_000) -> Iterator[Planned]:
        """Read the transaction of each of the run's findings again, and yield its possible repair.

        Raises:
            UsageError: there are more than *count_max* of them, or a target was lost and the run kept no rows.
        """
        wanted = {verdict.name for verdict in REPAIRED}
        found = [
            each
            for each in self._store.findings(self._manifest, count_max * len(Verdict), kind_max=count_max + 1)
            if not only or bytes(each["tx"]) in only
        ]
        leaks = [each for each in found if each["verdict"] == Verdict.LEAK.name]
        todo = [each for each in found if each["verdict"] in wanted]
        if len(todo) > count_max:
            raise UsageError(f"more than {count_max} repairs; name some with --only")
        if not self._manifest["rows"] and any(each["verdict"] == Verdict.LOST.name for each in todo):
            raise UsageError(
                f"run {self._run} kept no rows (--no-land), so which of a transaction's targets exist is not known: "
                "repair after a run that keeps them, or name stuck ones with --only"
            )
        done = self._done()
        lost = {bytes(each["tx"]) for each in todo if each["verdict"] == Verdict.LOST.name}
        look = Look(self._loaded, self._manifest, lost)
        names = {verdict.name for verdict in DOUBTED}
        doubted = {bytes(each["tx"]): each["verdict"] for each in found if each["verdict"] in names}
        yield from (self._plan(each, look, doubted) for each in todo if id_text(each["tx"]) not in done)
        advice = "a leaked message cannot be withdrawn: notify its consumers"
        yield from (Planned(bytes(each["tx"]), each["verdict"], advice) for each in leaks)

    def apply(self, planned: Sequence[Planned]) -> Iterator[tuple[Planned, str]]:
        """Make each possible repair, and yield it with "" or with the reason of its failure."""
        done = self._done()
        for each in planned:
            if each.resolution is None:
                continue
            waiting = _Waiting([each.resolution])
            self._backend(each.backend).release(waiting)
            self._backend(each.backend).poll(0)
            if not waiting.is_settled.wait(TIMEOUT_S) or waiting.outcome is None:
                yield each, str(BackendTimeoutError("the broker did not settle it in time"))
                continue
            outcome = waiting.outcome
            if outcome.status is Status.DURABLE:
                done[id_text(each.transaction_id)] = each.what
                self._store.write(self._run, DONE, msgspec.json.encode(done))
                yield each, ""
            else:
                yield each, f"{outcome.status.value}: {outcome.error or ''}"

    def _plan(self, finding: Mapping[str, Any], look: Look, doubted: Mapping[bytes, str]) -> Planned:
        identity, verdict = bytes(finding["tx"]), finding["verdict"]
        if verdict == Verdict.LOST.name and identity in doubted:
            return Planned(identity, verdict, f"it is {doubted[identity]} too, so its half may not be sent: inspect it")
        group = next((name for name, number in self._manifest["groups"].items() if number == finding["group"]), "")
        backend = next((name for name, number in self._manifest["backends"].items() if number == finding["home"]), "")
        if not group or not backend:
            return Planned(identity, verdict, "neither half nor target exists: only the application can send it again")
        try:
            journey = self._operator(backend, group).show(TransactionId(identity))
        except TxcoreError as error:
            return Planned(identity, verdict, f"cannot be read: {error}")
        if verdict == Verdict.LOST.name:
            return self._republish(finding, journey, backend, group, look)
        return self._park(identity, journey, backend, group)

    def _republish(self, finding: Mapping[str, Any], journey: Journey, backend: str, group: str, look: Look) -> Planned:
        identity, half = journey.transaction_id, journey.half
        if half is None or journey.final != OpKind.COMMIT:
            return Planned(identity, Verdict.LOST.name, "its logs hold no half with a COMMIT: inspect it")
        present = self._store.present(self._manifest, identity, finding["home"])
        missing = [index for index in range(len(half.messages)) if index not in present]
        try:
            for topic in {half.messages[index].topic for index in missing}:
                present |= look.present(backend, topic, identity)
        except TxcoreError as error:
            return Planned(identity, Verdict.LOST.name, f"its topic cannot be read: {error}")
        missing = [index for index in missing if index not in present]
        if not missing:
            return Planned(identity, Verdict.LOST.name, "nothing is missing any more")
        record = HalfRecord(group, half.partition, identity, half.generation, wire.encode_half(half), half.messages)
        topics = ", ".join(f"{index} to {half.messages[index].topic}" for index in missing)
        return Planned(
            identity, Verdict.LOST.name, f"publish {topics}", Resolution(record, None, missing, b"", BY), backend
        )

    def _park(self, identity: bytes, journey: Journey, backend: str, group: str) -> Planned:
        half = journey.half
        if half is None or not journey.is_pending:
            return Planned(identity, Verdict.STUCK.name, "it is decided or parked by now")
        body, now_ms = wire.encode_half(half), self._clock.wall_ms()
        reason = f"stuck; parked after audit run {self._run}"
        parked = Parked(
            wire.VERSION, identity, half.generation, ParkCode.CHECKS_EXHAUSTED, reason, journey.count, BY, now_ms,
            journey.token_before, body,
        )  # fmt: skip
        op = Op(
            OpKind.DISCARD, identity, half.generation, BY, now_ms, journey.token_before, journey.count,
            reason=ParkCode.CHECKS_EXHAUSTED,
        )  # fmt: skip
        if journey.decided:
            return Planned(identity, Verdict.STUCK.name, "a decision is journaled: its checker has to execute it")
        record = HalfRecord(group, half.partition, identity, half.generation, body, ())
        resolution = Resolution(record, op, (), wire.encode_parked(parked), BY, flush=True)
        return Planned(identity, Verdict.STUCK.name, "park it; `txcore resume` continues it", resolution, backend)

    def _operator(self, backend: str, group: str) -> Operator:
        if (backend, group) not in self._operators:
            self._operators[backend, group] = Operator(self._backend(backend), group, by=BY)
        return self._operators[backend, group]

    def _backend(self, name: str) -> Backend:
        if name not in self._backends:
            opened = txcore.connect(self._loaded.secret("backends", name, "url"))
            self._stack.callback(opened.close)
            self._backends[name] = opened
        return self._backends[name]

    def _done(self) -> dict[str, str]:
        found: dict[str, str] = msgspec.json.decode(self._store.read(self._run, DONE) or b"{}")
        return found


def repair(
    loaded: Loaded,
    run: int,
    *,
    only: Collection[bytes],
    apply: bool,
    say: Callable[[str], None],
    as_json: bool = False,
    awaited: Callable[[Iterator[Any], str], Iterator[Any]] = lambda items, _: items,
) -> int:
    """Show each possible repair after a run, and make them with *apply*; return 0, or 1 if one failed.

    Args:
        say: Called with each line as soon as its transaction was read or repaired; with *as_json*, once at the end.
        awaited: Passes items through, and shows meanwhile that the next one is worked on.
    """
    show: Callable[[str], None] = (lambda _: None) if as_json else say
    repairer = Repairer(loaded, Store(loaded.config.audit.store), run)
    try:
        planned: list[Planned] = []
        for each in awaited(repairer.plan(only), "reading the logs"):
            planned.append(each)
            show(f"{id_text(each.transaction_id)} {each.verdict:<6} {each.what}")
        can = [each for each in planned if each.resolution is not None]
        troubles: dict[bytes, str] = {}
        for each, trouble in awaited(repairer.apply(can), "repairing") if apply else ():
            troubles[each.transaction_id] = trouble
            show(f"{id_text(each.transaction_id)} {'FAILED ' + trouble if trouble else 'repaired'}")
        failed = sum(map(bool, troubles.values()))
        if not apply:
            found = counted(len(planned), "finding")
            show(f"{len(can)} of {found} can be repaired; nothing was written: --apply does it")
        else:
            show(f"{len(can) - failed} repaired, {failed} failed; the next audit shows it")
        if as_json:
            say(msgspec.json.encode([_row(each, troubles.get(each.transaction_id)) for each in planned]).decode())
        return int(failed > 0)
    finally:
        repairer.close()


def _row(planned: Planned, trouble: str | None) -> dict[str, str]:
    """Return a finding for programs; *trouble* is None where nothing was written."""
    if planned.resolution is None:
        result = "refused"
    elif trouble is None:
        result = "would_do"
    else:
        result = "failed" if trouble else "done"
    text = trouble or planned.what
    identity = id_text(planned.transaction_id)
    return {"transaction_id": identity, "verdict": planned.verdict, "result": result, "text": text}
