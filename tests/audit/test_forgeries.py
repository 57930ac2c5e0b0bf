"""Forged records that no program of txcore writes: each gets its verdict, and an honest group gets none."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import replace

import pytest
from beds import Bed, found_in
from txcore_spark.anomalies import FORGERIES, Forgery, Maker, identity_of
from txcore_spark.plan import TARGET, Source
from txcore_spark.readers.kafka import add_record
from txcore_spark.rows import Place, Rows, message_hash

import txcore
from txcore.audit.targets import target_digest
from txcore.audit.verdicts import Verdict

OTHER = "payments"


@pytest.fixture
def bed(tmp_path):
    """A group beside another one of the same configuration."""
    sections = f'[groups.{OTHER}]\ndatabase = "main"'
    made = Bed(tmp_path, sections=sections)
    made.maker = Maker("orders", 2, list(made.topics), key_as_header=False, other_group=OTHER)
    with txcore.connect(made.url) as backend:
        backend.ensure_group(OTHER, 1).result(10)
    return made


def test_each_forgery_gets_its_verdict_and_no_other(engine, bed):
    """Where a listener may commit without a row, the half's own word counts."""
    bed.write(*FORGERIES, *[None] * 5)
    manifest = bed.audit(engine).once()
    assert {tx: verdicts for tx, verdicts in bed.expected.items() if verdicts} == found_in(bed.store(), manifest)
    assert 2 == manifest["exit_code"]
    made = dict(zip(FORGERIES, bed.expected, strict=False))
    texts = {bytes(each["tx"]): each["texts"] for each in bed.store().findings(manifest, 100)}
    assert {
        Forgery.OTHER_GROUP: ["a target differs from the half"],
        Forgery.FORCED_BY_NOTHING: [],
        Forgery.UNFENCED: [],
        Forgery.REPLACED: ["the half differs from the digest in the fence row"],
        Forgery.REORDERED: ["the half differs from the digest in the fence row"],
        Forgery.MISSENT: ["the targets differ from the digest in the fence row"],
    } == {kind: texts[identity] for kind, identity in made.items()}
    bed.listener = "shop:listener"
    assert made[Forgery.UNFENCED] not in found_in(bed.store(), bed.audit(engine).once())


@pytest.mark.parametrize(
    ("headers", "verdict"),
    [
        (lambda own: {"txcore-id": own["txcore-id"].upper()}, "PHANTOM"),
        (lambda own: {"txcore-id": own["txcore-id"].replace("-", "")}, "PHANTOM"),
        (lambda own: {"txcore-id": own["txcore-id"].replace(":0", ":00")}, "PHANTOM"),
        (lambda _: {"txcore-due": "1795600000000"}, "CORRUPT"),
        (lambda _: {"txcore-key": "another key"}, "CORRUPT"),
    ],
)
def test_a_copy_that_a_consumer_may_take_for_another_message_is_a_violation(duck, tmp_path, headers, verdict):
    """A consumer compares ids as texts, an inbox takes the time of a delayed message for a part of its id."""
    bed = Bed(tmp_path)
    history = bed.write(None)[0]
    target = next(each for each in history.records if each.log == "target")
    bed.writer.write([(0, replace(target, headers={**target.headers, **headers(target.headers)}))])
    manifest = bed.audit(duck).once()
    assert verdict in manifest["counts"]
    assert 2 == manifest["exit_code"]


@pytest.mark.parametrize("time_ms", [(1 << 63) - 1, -(1 << 63), 1 << 62])
@pytest.mark.parametrize("log", ["half", "op", "parked", "target"])
def test_no_time_of_a_record_ends_the_audit(duck, tmp_path, log, time_ms):
    """A broker's time is any 64-bit number, and one record must not keep the audit from judging the others."""
    bed = Bed(tmp_path)
    bed.write(None, Verdict.LEAK, Verdict.STUCK, Verdict.LATE_CHECK, Verdict.DISCARDED)
    with sqlite3.connect(tmp_path / "broker.db") as connection:
        connection.execute(f"UPDATE {log} SET appended_ms = ?", (time_ms,))
    connection.close()
    manifest = bed.audit(duck, grace_s=0).once()
    assert (2, 1) == (manifest["exit_code"], manifest["counts"]["LEAK"])


@pytest.mark.parametrize("size", [1, 2])
def test_no_number_of_copies_ends_the_audit(duck, tmp_path, size):
    """A program that can write to a topic repeats one message until a sum of its hashes has more than 64 bits."""
    bed = Bed(tmp_path)
    history = bed.write(None, size=size)[0]
    copies = [each for each in history.records if each.log == "target"][:1] * 140_000
    bed.writer.write((0, each) for each in copies)
    manifest = bed.audit(duck).once()
    assert (1, {"DUP_TARGET": 1}) == (manifest["exit_code"], manifest["counts"])


def same_sum(targets):
    """Return other targets whose unkeyed hashes have the same exclusive or, by elimination of bits."""
    own = [hash_of_target(index, each) for index, each in enumerate(targets)]
    for tried in itertools.count():
        forged = [replace(each, body=b"forged %d" % (tried * 100 + index)) for index, each in enumerate(targets)]
        pivots = {}
        for index, each in enumerate(forged):
            bits, chosen = own[index] ^ hash_of_target(index, each), 1 << index
            while bits and bits.bit_length() in pivots:
                other = pivots[bits.bit_length()]
                bits, chosen = bits ^ other[0], chosen ^ other[1]
            if not bits:
                return [forged[at] if chosen >> at & 1 else each for at, each in enumerate(targets)]
            pivots[bits.bit_length()] = (bits, chosen)
    return targets


def hash_of_target(index, target):
    """Return the hash that a program without the store's key can compute, as a positive number."""
    digest = target_digest(target.topic, target.key, target.body, target.headers)
    return message_hash("orders", index, digest) % (1 << 64)


def test_messages_with_the_same_sum_of_hashes_are_corrupt(duck, tmp_path):
    """Most messages of a transaction are replaced such that their hashes cancel out; their key is secret."""
    bed = Bed(tmp_path)
    history = bed.write(None, size=62, parts=("half", "op", "row"))[0]
    targets = [each for each in history.records if each.log == "target"]
    bed.writer.write([(0, each) for each in same_sum(targets)])
    manifest = bed.audit(duck).once()
    assert (2, {"CORRUPT": 1}) == (manifest["exit_code"], manifest["counts"])
    step = bed.audit(duck).incremental()
    assert step["secret"] != manifest["secret"]
    assert step["secret"] == bed.audit(duck).incremental()["secret"]
    assert step["secret"] not in (bed.store().read(step["number"], "report.json")).decode()


def test_a_doubled_header_differs_from_the_half_in_either_order():
    """A consumer may read the first one or the last one; with the evil one first, the last one is the half's."""
    maker = Maker("g", 1, ["t"], key_as_header=False)
    history = maker.make(identity_of(1_700_000_000_000, 1), 1_700_000_000_000)
    half = next(each for each in history.records if each.log == "half")
    target = next(each for each in history.records if each.log == "target")
    rows = Rows(Place(0, 0, 0, 0), {"g": 0})
    rows.add_half(0, half.body, None)
    honest = [(name, value if isinstance(value, bytes) else value.encode()) for name, value in target.headers.items()]
    for number, headers in enumerate((honest, [("n", b"evil"), *honest], [*honest, ("n", b"evil")])):
        add_record(rows, Source(1, "main", TARGET, "t", topic="t"), number, None, target.key, target.body, headers)
    wanted, *found = rows.take().column("hash").to_pylist()
    assert [True, False, False] == [each == wanted for each in found]
