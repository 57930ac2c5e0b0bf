"""Each verdict on the smallest history with its fault, and none on correct histories; judged by Spark."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from judging import judged_by
from txcore_spark.anomalies import BY, RECIPES, Forgery, History, Maker, Written, identity_of
from txcore_spark.rows import Place, Rows

from txcore import wire
from txcore.audit.verdicts import PARKED, SENT, Thresholds, Verdict
from txcore.digest import digest_of
from txcore.history.copies import is_copy
from txcore.records import Half, Op, OpKind, ParkCode, Parked, TargetMessage

BORN_MS = 1_700_000_000_000
NOW_MS = BORN_MS + 3_600_000
THRESHOLDS = Thresholds(NOW_MS, grace_ms=1_000, late_ms=60_000, release_ms=1_000)
TOKEN, OTHER = b"t" * 16, b"o" * 16


class Case(History):
    """A history that is written by hand."""

    __slots__ = ("name", "other")

    def __init__(self, name, identity, expected):
        super().__init__(identity, 0, [], set(expected))
        self.name = name
        self.other = []  # on the second broker

    def half(self, *, size=1, generation=0, fenced=True, **more):
        messages = [TargetMessage("t", b"k", b"body %d" % n, {}) for n in range(size)]
        half = Half(1, self.transaction_id, "g", 0, generation, BORN_MS, 0, 1_000, 3, fenced, BY, messages, **more)
        self.records.append(Written("half", wire.encode_half(half)))
        return self

    def ops(self, *ops):
        for kind, more in ops:
            op = Op(kind, self.transaction_id, more.pop("generation", 0), BY, BORN_MS, **more)
            self.records.append(Written("op", wire.encode_ops([op])))
        return self

    def target(self, *indexes, body=b"", other=False):
        for index in indexes:
            headers = {wire.HEADER_ID: wire.target_id(self.transaction_id, index), wire.HEADER_GROUP: "g"}
            written = Written("target", body or b"body %d" % index, "t", b"k", headers)
            (self.other if other else self.records).append(written)
        return self

    def parked(self, code):
        entry = Parked(1, self.transaction_id, 0, code, "r", 0, BY, BORN_MS, TOKEN, b"")
        self.records.append(Written("parked", wire.encode_parked(entry)))
        return self

    def row(self, state, *bodies):
        """Add a fence row, with the digest of messages with these bodies."""
        digest = digest_of([TargetMessage("t", b"k", body, {}) for body in bodies]) if bodies else b""
        self.records.append(Written("row", bytes([state]) + digest))
        return self


COMMIT, ROLLBACK = (OpKind.COMMIT, {}), (OpKind.ROLLBACK, {})
FORGED = {"proved_at": 0}  # the place of a CLAIM; a copy that names none gets its proof
PROOFS = 1_000_000
"""First place of the proofs; the other records are at lower ones."""
BODIES = b"body 0", b"body 1", b"body 2"


def by_hand(new):
    """Return the cases that need more than a recipe."""
    exhausted = {"reason": ParkCode.CHECKS_EXHAUSTED}
    return [
        Case("several messages", new(), []).half(size=3).row(1).target(0, 1, 2).ops(COMMIT),
        Case("a carried copy", new(), []).half(size=3).half(size=3).row(1).target(0, 1, 2).ops(COMMIT),
        Case("one missing, one twice", new(), ["LOST", "DUP_TARGET"]).half(size=2).row(1).target(0, 0).ops(COMMIT),
        Case("one of many missing", new(), ["LOST"]).half(size=70).row(1).target(*range(69)).ops(COMMIT),
        Case("very many", new(), []).half(size=70).row(1).target(*range(70)).ops(COMMIT),
        Case("one corrupt, one twice", new(), ["CORRUPT", "DUP_TARGET"])
        .half(size=2)
        .row(1)
        .target(0)
        .target(1, 1, body=b"other")
        .ops(COMMIT),
        Case("two that changed places", new(), ["CORRUPT"])
        .half(size=2)
        .row(1)
        .target(0, body=b"body 1")
        .target(1, body=b"body 0")
        .ops(COMMIT),
        Case("an index beyond all numbers", new(), []).half().row(1).target(0, 1 << 70).ops(COMMIT),
        Case("an index that was never declared", new(), ["CORRUPT"]).half().row(1).target(0, 1).ops(COMMIT),
        Case("bridged", new(), []).half().row(1).target(0).target(0, other=True).ops(COMMIT),
        Case("bridged and changed", new(), ["CORRUPT"]).half().row(1).target(0).target(0, body=b"x", other=True)
        .ops(COMMIT),
        Case("only the bridged one is there", new(), ["LOST"]).half().row(1).target(0, other=True).ops(COMMIT),
        Case("resumed after a discard", new(), []).half().ops((OpKind.DISCARD, exhausted | {"token": TOKEN}))
        .half(generation=1).row(1).target(0).ops((OpKind.COMMIT, {"generation": 1})),
        Case("resumed, and pending for too long", new(), ["STUCK"]).half()
        .ops((OpKind.DISCARD, exhausted | {"token": TOKEN})).half(generation=1),
        Case("a discard of a stale owner", new(), ["STUCK"]).half().ops((OpKind.DISCARD, exhausted | {"token": OTHER})),
        Case("a discard after a decision is void", new(), ["STUCK"]).half()
        .ops((OpKind.DECIDED, {"decision": 1, "token": TOKEN}), (OpKind.DISCARD, exhausted | {"token": TOKEN})),
        Case("a discard before a decision of the next generation", new(), ["STUCK"]).half()
        .ops((OpKind.DISCARD, exhausted | {"token": TOKEN})).half(generation=1)
        .ops(
            (OpKind.DECIDED, {"decision": 1, "token": TOKEN, "generation": 1}),
            (OpKind.DISCARD, exhausted | {"token": TOKEN, "generation": 1}),
        ),
        Case("resumed by a forged copy", new(), ["DISCARDED"]).half()
        .ops((OpKind.DISCARD, exhausted | {"token": TOKEN})).half(generation=1, **FORGED),
        Case("ended well, with a forged copy", new(), []).half().row(1).target(0).ops(COMMIT)
        .half(size=2, generation=5, **FORGED),
        Case("nothing but a forged copy", new(), ["PHANTOM"]).half(generation=1, **FORGED).target(0).ops(COMMIT),
        Case("the half was lost", new(), ["LOST"]).row(1),
        Case("the half was lost, and its journaled commit was closed by hand", new(), [])
        .parked(ParkCode.LOST).row(1).ops((OpKind.DECIDED, {"decision": 1, "token": TOKEN}), COMMIT),
        Case("the half was lost, and committed by nothing", new(), ["PHANTOM"])
        .parked(ParkCode.LOST).row(1).ops(COMMIT),
        Case("no half, but a rollback", new(), []).row(2),
        Case("by the message table", new(), []).row(3).target(0),
        Case("by the message table, sent", new(), []).row(SENT).target(0),
        Case("by the message table, not sent yet", new(), []).row(3),
        Case("by the message table, parked", new(), ["UNDELIVERABLE"]).row(PARKED),
        Case("by the message table, waiting, with a half that was closed", new(), []).half().row(3).ops(COMMIT),
        Case("by the message table, but it never came", new(), ["LOST"]).row(SENT),
        Case("by the message table, with a half that turned up", new(), []).half().row(3).target(0).ops(COMMIT),
        Case("by the message table, with an end of nothing", new(), ["PHANTOM"]).row(3).target(0).ops(COMMIT),
        Case("committed without a row", new(), ["MISDECIDED"]).half().target(0).ops(COMMIT),
        Case("forced in the table, and by no operator", new(), ["MISDECIDED"]).half().row(4).target(0).ops(COMMIT),
        Case("forced in the table, and not decided yet", new(), ["STUCK"]).half().row(4),
        Case("committed after a tombstone", new(), ["LEAK", "MISDECIDED"]).half().row(2).target(0).ops(COMMIT),
        Case("committed by the listener's word, after the tombstone that the check left", new(), [])
        .half(fenced=False).row(2).target(0).ops(COMMIT),
        Case("rolled back by the listener's word, and there", new(), ["LEAK"])
        .half(fenced=False).row(2).target(0).ops(ROLLBACK),
        Case("rolled back and said twice", new(), ["DUP_OP"]).half().row(2).ops(ROLLBACK, ROLLBACK),
        Case("vouched for", new(), []).half(size=3).row(1, *BODIES).target(0, 1, 2).ops(COMMIT),
        Case("another order than the row's", new(), ["CORRUPT"]).half(size=2).row(1, *BODIES[1::-1]).target(0, 1)
        .ops(COMMIT),
        Case("altered and lost", new(), ["CORRUPT", "LOST"]).half().row(1, b"another").ops(COMMIT),
        Case("one that was sent", new(), []).row(SENT, *BODIES[:1]).target(0),
        Case("several that were sent", new(), []).row(SENT, *BODIES).target(0, 1, 2),
        Case("sent twice", new(), ["DUP_TARGET"]).row(SENT, *BODIES).target(0, 1, 1, 2),
        Case("sent, and altered", new(), ["CORRUPT"]).row(SENT, b"another").target(0),
        Case("sent in another order", new(), ["CORRUPT"]).row(SENT, *BODIES[1::-1]).target(0, 1),
        Case("one of several that were sent is gone", new(), ["CORRUPT"]).row(SENT, *BODIES).target(0, 1),
        Case("sent, and another one elsewhere", new(), ["CORRUPT"]).row(SENT, *BODIES[:1]).target(0)
        .target(0, body=b"x", other=True),
        Case("one of several still waits", new(), []).row(3, *BODIES).target(0),
        Case("refused with a target is none", new(), ["CONFLICT", "LEAK", "MISDECIDED"])
        .half().row(1).target(0).ops(ROLLBACK, COMMIT),
    ]  # fmt: skip


def with_proof(ops, place, body):
    """Return a half; a copy that names no place has its proof there."""
    half = wire.decode_half(body)
    if not is_copy(half) or half.proved_at >= 0:
        return body
    ops.add_ops(place, wire.encode_ops([Op(OpKind.TICK, wire.proof_of(half))]), BORN_MS)
    return wire.encode_half(msgspec.structs.replace(half, proved_at=place))


def landed(cases):
    """Return the rows of all cases, on two brokers."""
    logs = {
        "half": Rows(Place(0, 0, 0, 0)),
        "op": Rows(Place(0, 1, 0, 0)),
        "parked": Rows(Place(0, 2, 0, 0)),
        "target": Rows(Place(0, 3, 0), {"g": 0}),
        "row": Rows(Place(0, 5, 0, 0)),
    }
    other = Rows(Place(1, 4, 0), {"g": 0})
    logs["op"].add_ops(0, wire.encode_ops([Op(OpKind.CLAIM, bytes(16), token=TOKEN)]), BORN_MS)
    for position, (case, written) in enumerate(((c, w) for c in cases for w in c.records), start=1):
        rows, body = logs[written.log], written.body
        if written.log == "half":
            body = with_proof(logs["op"], position + PROOFS, body)
        ts_ms = BORN_MS + (0 if not written.phase else 120_000)
        if written.log == "target":
            rows.add_target(position, written.topic, written.key, written.body, written.headers, ts_ms)
        elif written.log == "row":
            content = written.body[1:]
            rows.add_fence_row(case.transaction_id, written.body[0], 1, is_early=True, content=content)
        else:
            {"half": rows.add_half, "op": rows.add_ops, "parked": rows.add_parked}[written.log](position, body, ts_ms)
    for position, written in enumerate(w for c in cases if isinstance(c, Case) for w in c.other):
        other.add_target(position, written.topic, written.key, written.body, written.headers, BORN_MS)
    return [row for rows in (*logs.values(), other) for row in rows.found]


@pytest.fixture(scope="module")
def judged(engine, tmp_path_factory):
    """Return the expected and the found verdicts of every case, by name."""
    numbers = itertools.count(1)

    def new():
        return identity_of(BORN_MS, next(numbers))

    maker = Maker("g", 1, ["t"], key_as_header=False)
    cases = by_hand(new)
    names = {case.transaction_id: case.name for case in cases}
    for kind in (None, *RECIPES, Forgery.REPLACED, Forgery.REORDERED):
        made = maker.make(new(), BORN_MS, kind)
        for record in list(made.records):
            # Recipes are written for logs without an owner; here one has claimed the partition.
            if record.log == "op":
                ops = wire.decode_ops(record.body)
                for op in ops:
                    op.token = TOKEN
                place = made.records.index(record)
                made.records[place] = Written("op", wire.encode_ops(ops), phase=record.phase)
        names[made.transaction_id] = kind.name if kind else "well"
        cases.append(made)
    folder = tmp_path_factory.mktemp("rules") / "rows"
    found = judged_by(engine, landed(cases), folder, THRESHOLDS, backends=2)
    actual = {identity: (set(each["verdicts"]), each["doubt"]) for identity, each in found.items()}
    return {names[case.transaction_id]: (case.expected, *actual.get(case.transaction_id, (set(), 0))) for case in cases}


def test_every_history_gets_exactly_its_verdicts(judged):
    """Each history, by hand or by recipe, gets its verdicts and no others."""
    assert {} == {name: each for name, each in judged.items() if each[0] != each[1]}


def test_no_verdict_is_without_doubt(judged):
    """Transactions that sums alone prove correct are not judged."""
    assert {} == {name: each for name, each in judged.items() if each[1] and not each[2]}
    assert {"well": 0, "vouched for": 0, "one that was sent": 0} == {
        name: judged[name][2] for name in ("well", "vouched for", "one that was sent")
    }


def test_every_verdict_on_a_transaction_has_a_history(judged):
    """Every verdict but COVERAGE_GAP, which is on a range, has a history."""
    assert {verdict.name for verdict in Verdict} - {"COVERAGE_GAP"} <= set(judged)
