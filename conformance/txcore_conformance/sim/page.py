"""The playground as JSON, for the page that runs it in a browser: what there is to see after each choice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from txcore import wire
from txcore.ids import id_text, parse_id
from txcore.records import MARK_KINDS, LogKind, OpKind
from txcore_conformance.sim.archive import ops_in
from txcore_conformance.sim.mutants import MUTANTS
from txcore_conformance.sim.play import run
from txcore_conformance.sim.playground import Playground, Step, replayed
from txcore_conformance.sim.process import Process

RULES: Final = {
    "no_fence": "R4: a check leaves a tombstone",
    "op_before_target": "R3: the message comes before its op",
    "late_producer_publishes": "R6: a late producer gives way",
}
"""The rules that a visitor may switch off, by the name of the mutant that does it."""


class Page:
    """One visitor's page; every answer is a text in JSON."""

    def __init__(self) -> None:
        self._visit = Playground()
        self._rules = contextlib.ExitStack()

    def rules(self) -> str:
        """Return the rules that may be switched off."""
        return json.dumps(RULES)

    def begin(self, seed: int, broker: str, choices: Sequence[str] = (), rule: str = "") -> str:
        """Begin a new visit, after *choices*; returns what there is to see.

        Args:
            rule: One of `RULES`, which is switched off until the next visit begins; "" for none.

        Raises:
            ValueError: one of the choices is not open at its place.
        """
        self._rules.close()
        if rule in RULES:
            self._rules.enter_context(MUTANTS[rule].patch())
        self._visit = replayed(seed, broker, choices)
        return json.dumps(seen(self._visit, self._visit.opening))

    def choose(self, choice: str) -> str:
        """Carry out a choice; returns what there is to see then.

        Raises:
            ValueError: it is not open now.
        """
        step: Step = self._visit.choose(choice)
        return json.dumps(seen(self._visit, step.sentences))

    def play(self, seed: int) -> str:
        """Play one whole seed of the simulator, with its random faults; returns its result."""
        result = run(seed, may_be_real=False)
        found = {
            "seed": seed,
            "broker": result.profile,
            "transactions": result.transactions,
            "crashes": result.sometimes.get("crash", 0),
            "freezes": result.sometimes.get("freeze", 0),
            "lost": sum(count for name, count in result.sometimes.items() if name.startswith("fate ")),
            "duplicates": result.duplicates,
            "violations": result.violations,
            "trace": result.trace,
        }
        return json.dumps(found)


def seen(visit: Playground, sentences: Sequence[str]) -> dict[str, Any]:
    """Return everything that the page shows, with the sentences of the newest choice."""
    return {
        "sentences": sentences,
        "now_s": visit.cast.world.now_s,
        "producer": _producer(visit),
        "checker": _checker(visit),
        "database": list(_database(visit)),
        "halves": list(_halves(visit)),
        "ops": list(_ops(visit)),
        "messages": list(_messages(visit)),
        "open": visit.open_choices(),
        "chosen": visit.chosen,
        "is_at_rest": visit.is_at_rest,
        "trace": visit.trace,
    }


def _state(process: Process) -> str:
    if not process.is_alive:
        return "dead"
    return "frozen" if process.frozen_until_s > process.world.now_s else "alive"


def _producer(visit: Playground) -> dict[str, Any]:
    state, now_s = _state(visit.producer), visit.cast.world.now_s
    under_way = [order.number for order in visit.orders if order.process is visit.producer and not order.has_returned]
    text = f"works on order {', '.join(map(str, under_way))}" if under_way else "waits for an order"
    if state == "dead":
        text = "killed"
    elif state == "frozen":
        text = f"frozen for {visit.producer.frozen_until_s - now_s:.1f} s more"
    return {"name": visit.producer.name, "state": state, "text": text}


def _checker(visit: Playground) -> dict[str, Any]:
    state = _state(visit.checker)
    owner = visit.cast.memberships[-1][1].owners.get(0)
    stats = None if owner is None else owner.stats()
    if state == "dead":
        text = "killed"
    elif owner is None or stats is None or not stats.is_claimed:
        text = "waits for the partition"
    elif not stats.pending:
        text = "owns the partition; no half is undecided"
    else:
        due_ms = owner.tenure.state.next_due_ms()
        wait_s = 0.0 if due_ms is None else max((due_ms - owner.tenure.now_ms()) / 1000, 0.0)
        when = f"the next is due in {wait_s:.1f} s" if wait_s else "one is in hand"
        text = f"owns the partition; undecided halves: {stats.pending}, {when}"
    return {"name": visit.checker.name, "state": state, "text": text}


def _database(visit: Playground) -> Iterator[dict[str, Any]]:
    database = visit.cast.database
    locked = {connection.transaction_id for connection in database.open}
    for order in visit.orders:
        identity = order.core.identity
        state = database.rows.get(identity)
        if state == 2:
            yield {"order": order.number, "row": "", "fence": "tombstone", "state": "undone"}
        elif state is not None:
            yield {"order": order.number, "row": f"order {order.number}", "fence": "committed", "state": "done"}
        elif identity in locked:
            yield {"order": order.number, "row": f"order {order.number}", "fence": "not yet visible", "state": "open"}


def _halves(visit: Playground) -> Iterator[dict[str, Any]]:
    archive = visit.cast.archive
    for record in archive.records(LogKind.HALF, 0):
        identity = wire.decode_half(record.body).transaction_id
        journey = archive.journey(identity)
        state = "pending" if journey is None else journey.state
        number = visit.narrator.numbers.get(identity, 0)
        yield {"position": record.position, "order": number, "state": state}


def _ops(visit: Playground) -> Iterator[dict[str, Any]]:
    for record in visit.cast.archive.records(LogKind.OP, 0):
        for op in ops_in(record):
            number = 0 if op.kind in MARK_KINDS else visit.narrator.numbers.get(op.transaction_id, 0)
            by = "checker" if op.kind in MARK_KINDS or op.by.startswith("c:") else "producer"
            yield {"position": record.position, "kind": OpKind(op.kind).name, "order": number, "by": by}


def _messages(visit: Playground) -> Iterator[dict[str, Any]]:
    met = set[str]()
    for messages in visit.cast.world.broker.topics.values():
        for message in messages:
            text = str(message.headers[wire.HEADER_ID])
            identity = parse_id(text.rpartition(":")[0])
            yield {
                "position": message.position,
                "order": visit.narrator.numbers.get(identity, 0),
                "body": message.body.decode(),
                "id": f"{id_text(identity)[-6:]}{text[text.rindex(':') :]}",
                "is_copy": text in met,
            }
            met.add(text)
