"""Simulated histories as the audit's rows, and the oracle's result for each transaction in them."""

from __future__ import annotations

from unittest import mock

from txcore_conformance import invariants
from txcore_conformance.invariants import Facts, Local
from txcore_conformance.sim import cast as casting
from txcore_conformance.sim import judgement, play
from txcore_conformance.tally import tally_of
from txcore_spark.rows import Place, Rows

from txcore import wire
from txcore.audit.verdicts import CANCELLED, SENT
from txcore.records import LogKind

STATES = {Local.COMMITTED: 1, Local.ROLLED_BACK: 2}
LOGS = {LogKind.HALF: 0, LogKind.OP: 1, LogKind.PARKED: 2}


def played(seed):
    """Play one seed, and return its cast and the facts that the oracle judged."""
    casts, judged = [], []
    judge = invariants.judge

    def capture(cast, kept=play.judge_all):
        casts.append(cast)
        return kept(cast)

    def note(facts, promises, *, at_rest):
        judged.append(facts)
        return judge(facts, promises, at_rest=at_rest)

    with mock.patch.object(play, "judge_all", capture), mock.patch.object(invariants, "judge", note):
        play.run(seed)
    return casts[0], {facts.journey.transaction_id: facts for facts in judged}


def rows_and_tallies(seed):
    """Return a seed's rows, the oracle's tally of every transaction, and the ids of the excused ones."""
    cast, facts = played(seed)
    found = []
    for (kind, partition), records in cast.archive.items():
        rows = Rows(Place(0, seed * 8 + LOGS[kind], partition, 0))
        add = {LogKind.HALF: rows.add_half, LogKind.OP: rows.add_ops, LogKind.PARKED: rows.add_parked}[kind]
        for record in records:
            add(record.position, record.body, record.appended_ms)
        found += rows.found
    for number, (topic, messages) in enumerate(cast.world.broker.topics.items()):
        rows = Rows(Place(0, seed * 8 + 3, number), {casting.GROUP: 0})
        for message in messages:
            rows.add_target(message.position, topic, message.key, message.body, message.headers, message.appended_ms)
        found += rows.found
    table = Rows(Place(0, seed * 8 + 7, 0, 0))
    for identity, each in facts.items():
        is_via_table = each.is_via_table and each.local is Local.COMMITTED
        gone = CANCELLED if each.cancelled else SENT
        state = STATES[each.local] if not is_via_table else 3 if each.in_table else gone
        table.add_fence_row(identity, state, 1, is_early=each.is_acknowledged, content=each.digest)
    found += table.found
    targets = judgement.targets_of(cast)
    for identity, journey in casting.journeys(cast).items():
        facts.setdefault(identity, Facts(journey, targets.get(identity, [])))
    excused = [identity for identity, each in facts.items() if each.is_excused]
    return found, {identity: tally_of(each) for identity, each in facts.items()}, excused


def by_name(tally):
    """Return a tally's numbers by name."""
    return {name: getattr(tally, name) for name in tally.__slots__}


__all__ = ["by_name", "played", "rows_and_tallies", "wire"]
