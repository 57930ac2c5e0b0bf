"""The oracle names violations: each test breaks one promise on purpose and expects its id."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from txcore_conformance import oracle, raw
from txcore_conformance.kit import COMMIT, Answers, Kit
from txcore_conformance.memory import KafkaLikeHarness, MemoryHarness

from txcore import EndState, Message
from txcore.errors import BackendTimeoutError
from txcore.records import Checkpoint, OpKind, Position, Resolution


@pytest.fixture
def kit():
    made = Kit(KafkaLikeHarness())
    yield made
    made.close()


@pytest.fixture
def topic(kit):
    return kit.topic()


def _ids(kit, **history):
    for name, value in history.items():
        setattr(kit.history, name, value)
    return sorted({text.split()[0] for text in kit.judge()})


def test_an_ordinary_history_is_faultless(kit, topic):
    """The oracle finds no violation, and `collect` returns every transaction."""
    transaction = kit.producer().begin()
    transaction.publish(Message(topic, b"body"))
    transaction.prepare()
    transaction.commit()
    kit.history.committed(transaction.transaction_id)
    assert [] == _ids(kit, at_rest=True)
    (facts,) = oracle.collect(kit.harness, kit.backend, kit.group, kit.history)
    assert (transaction.transaction_id, 1) == (facts.journey.transaction_id, len(facts.targets))


def test_both_ends_of_one_half_break_s1(kit, topic):
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.release(kit, raw.commit(half), raw.rollback(half))
    assert ["S1"] == _ids(kit)


def test_a_target_of_a_rolled_back_transaction_breaks_s2(kit, topic):
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.release(kit, Resolution(half, None, (0,), b"", raw.BY), raw.rollback(half))
    assert ["S2"] == _ids(kit)


def test_a_commit_without_its_target_breaks_s3(kit, topic):
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.release(kit, Resolution(half, raw.op(half, OpKind.COMMIT), (), b"", raw.BY, flush=True))
    assert ["S3"] == _ids(kit)


def test_a_decision_against_the_database_breaks_s4(kit, topic):
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.release(kit, raw.rollback(half))
    kit.history.committed(half.transaction_id)
    assert "S4" in _ids(kit)


def test_a_target_without_a_half_breaks_s5(kit, topic):
    raw.release(kit, raw.commit(raw.half(kit, topic)))
    assert ["S5"] == _ids(kit)


def test_a_duplicate_needs_a_cause(kit, topic):
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.release(kit, raw.commit(half), raw.commit(half))
    assert ["S6"] == _ids(kit)
    assert [] == _ids(kit, causes={half.transaction_id: 1})


def test_each_cause_allows_one_duplicate(kit, topic):
    """Recorded causes add to the default, and their texts are kept."""
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.release(kit, raw.commit(half), raw.commit(half), raw.commit(half))
    kit.history.caused(half.transaction_id, "broker killed")
    assert ["S6"] == _ids(kit)
    kit.history.caused(half.transaction_id, "ambiguous answer")
    assert [] == _ids(kit)
    assert {half.transaction_id: ["broker killed", "ambiguous answer"]} == kit.history.reasons


def test_a_changed_payload_breaks_s7(kit, topic):
    half = raw.half(kit, topic)
    raw.append(kit, half)
    half.messages[0].body = b"another"
    raw.release(kit, raw.commit(half))
    assert ["S7"] == _ids(kit)


def test_a_committed_transaction_that_no_log_holds_breaks_s8(kit, topic):
    kit.orphan(Message(topic, b"body"))
    kit.history.committed(b"\x01" * 16)
    assert ["S8"] == _ids(kit, at_rest=False) or "S8" in _ids(kit, at_rest=True)


def test_a_discard_without_its_parked_record_breaks_s10(kit, topic):
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.mark(kit, OpKind.CLAIM, b"t" * 16)
    raw.release(kit, Resolution(half, raw.op(half, OpKind.DISCARD, b"t" * 16), (), b"", raw.BY, flush=True))
    assert ["S10"] == _ids(kit)


def test_a_checkpoint_past_an_undecided_half_breaks_s11(kit, topic):
    raw.append(kit, raw.half(kit, topic), raw.half(kit, topic))
    records = raw.halves(kit, 2)
    claim = kit.backend.claim(kit.group, "me")
    claim.checkpoint(0, Checkpoint(records[1].position, None)).result(5)
    assert ["S11"] == _ids(kit)
    claim.checkpoint(0, Checkpoint(records[0].position, None)).result(5)
    assert [] == _ids(kit)
    assert isinstance(records[0].position, int)
    assert Position(1) <= records[0].position


def test_messages_out_of_order_break_s12_where_order_is_promised():
    kit = Kit(MemoryHarness())
    topic = kit.topic()
    half = raw.half(kit, topic, topic)
    raw.append(kit, half)
    raw.release(kit, Resolution(half, raw.op(half, OpKind.COMMIT), (1, 0), b"", raw.BY))
    assert ["S12"] == _ids(kit)
    kit.close()


def test_a_half_that_is_pending_at_rest_breaks_l1(kit, topic):
    kit.orphan(Message(topic, b"body"))
    assert [] == _ids(kit)
    assert ["L1"] == _ids(kit, at_rest=True)
    kit.sweep(kit.checker(Answers(COMMIT)))
    assert [] == _ids(kit, at_rest=True)


def test_a_journey_has_the_ops_that_wait_to_be_merged(kit, topic):
    """A backend may settle an op before it writes it: `Kit.journey` and `Kit.judge` wait until it is in its log."""
    merged_s = kit.backend.broker.profile.merge_delay_s
    kit.backend.broker.schedule = lambda delay_s, action: None if delay_s == merged_s else action()  # a mark writes ops
    producer = kit.producer()  # one that does not give way, however slow the machine is
    first, second = producer.begin(), producer.begin()
    for transaction in (first, second):
        transaction.publish(Message(topic, b"body"))
        transaction.prepare()
        kit.history.rolled_back(transaction.transaction_id)
    assert EndState.ACCEPTED is first.rollback().state
    assert OpKind.ROLLBACK == kit.journey(first.transaction_id).final
    assert EndState.ACCEPTED is second.rollback().state
    assert [] == _ids(kit, at_rest=True)


class Silent:
    """A reader that returns nothing for its first reads, as after a lost connection."""

    def __init__(self, reader, silent_count):
        self._reader = reader
        self._left = silent_count

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def read(self, count_max):
        self._left -= 1
        return [] if self._left >= 0 else self._reader.read(count_max)


@pytest.fixture
def silent(kit, monkeypatch):
    """Return a function that makes all readers silent for a number of reads, of a second each."""
    now_s = itertools.count()
    monkeypatch.setattr(oracle, "time", SimpleNamespace(monotonic=lambda: next(now_s), sleep=lambda _: None))
    read = kit.backend.read

    def silence(count):
        monkeypatch.setattr(type(kit.backend), "read", lambda _, *args: Silent(read(*args), count))

    return silence


def test_a_log_whose_records_come_late_is_read_to_its_end(kit, topic, silent):
    """A log that is silent for seconds is no empty log: the end that it reports says so."""
    raw.append(kit, raw.half(kit, topic))
    silent(20)
    assert 1 == sum(len(part.halves) for part in oracle.read_group(kit.backend, kit.group))
    assert [] == _ids(kit)


def test_a_log_that_is_not_read_to_its_end_is_not_judged(kit, topic, silent):
    """A log that gives its records too late is an error, and no violation."""
    raw.append(kit, raw.half(kit, topic))
    silent(1_000)
    with pytest.raises(BackendTimeoutError, match="log of partition"):
        kit.judge()
