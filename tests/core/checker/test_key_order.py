"""Order per key (R18): the line of each key, and the parked halves that hold theirs."""

from __future__ import annotations

import msgspec
import pytest
from txcore_conformance.owners import AnsweringFence, Owners, name_of

from txcore import LocalTransactionState as State
from txcore import wire
from txcore.checker.checkpoint import NoteEntry, note_of
from txcore.checker.decide import Decision, Pending, decide, terms_of
from txcore.checker.key_order import KeyOrder
from txcore.checker.limits import Limits, NewerRecords, OrderOnPark
from txcore.errors import ConfigError
from txcore.fence import FenceAnswer
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG
from txcore.records import Forced, LogKind, OpKind, ParkCode

PROFILES = [KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE, STRONG]
KEY = b"k"


def committed(owners, *numbers, order_key=KEY):
    """Append halves that their owner releases, each with its COMMITTED."""
    for number in numbers:
        owners.owned(number, order_key=order_key)
        owners.op(OpKind.COMMITTED, number)


def parked_head(profile=KAFKA_LIKE, **options):
    """Return owners of a partition with a parked half, and a committed one of its key after it."""
    owners = Owners(profile, check_max=1, **options)
    owners.owned(1, order_key=KEY, check_max=1)
    committed(owners, 2)
    owner = owners.start()
    assert owners.run(30, lambda: owners.kinds(1)[-1:] == ["DISCARD"])
    owners.run(20)
    return owners, owner


def test_the_first_half_of_a_key_is_the_one_that_was_stored_first():
    """The order of adding does not count, nor do other keys."""
    order = KeyOrder()
    assert [7, 3, 5] == [order.add(b"c", b"k", 7), order.add(b"a", b"k", 3), order.add(b"b", b"l", 5)]
    assert [True, True, False] == [order.is_first(each) for each in (b"a", b"b", b"c")]
    assert b"c" == order.end(b"a")
    assert (True, None, 1) == (order.is_first(b"c"), order.end(b"c"), len(order))


def test_the_earlier_of_two_positions_of_a_half_counts():
    """A copy may be read before the place of its first record is known, and after it."""
    order = KeyOrder()
    order.add(b"b", b"k", 5)
    assert [9, 2, 2] == [order.add(b"a", b"k", place) for place in (9, 2, 4)]
    assert (True, b"b") == (order.is_first(b"a"), order.end(b"a"))


def test_a_half_that_is_over_holds_up_none():
    """What was released may be released again; it has no place any more."""
    order = KeyOrder()
    order.add(b"a", b"k", 1)
    assert (None, True, None) == (order.end(b"a"), order.is_first(b"a"), order.end(b"unknown"))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_an_undecided_half_holds_up_its_own_key(profile):
    """Later ones of its key wait; as soon as it ends they are released, in their order."""
    answers = {1: State.UNKNOWN}
    owners = Owners(profile, listener=lambda number: answers[number], check_max=1_000)
    owners.owned(1, order_key=KEY, check_max=1_000)
    committed(owners, 2, 3)
    committed(owners, 4, order_key=b"other")
    owners.start()
    owners.run(20)
    assert [b"b4"] == owners.delivered()
    answers[1] = State.COMMIT
    owners.run(20)
    assert [b"b4", b"b1", b"b2", b"b3"] == owners.delivered()


def test_a_rolled_back_half_frees_its_key():
    """A ROLLBACK of the producer ends the wait when it was read."""
    owners = Owners()
    owners.owned(1, order_key=KEY)
    committed(owners, 2)
    owners.op(OpKind.ROLLBACK, 1)
    owners.start()
    owners.run(20)
    assert [b"b2"] == owners.delivered()


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_parked_half_holds_its_key_over_restarts(profile):
    """No restart forgets the hold, however many records come after it."""
    owners, owner = parked_head(profile, limits=Limits(checkpoint_interval_s=0.0, replay_max=1))
    for number in range(10, 20):
        committed(owners, number, order_key=b"other%d" % number)
        owners.run(2)
    for _ in range(3):
        owner = owners.restart(owner, 30)
        assert 1 == owner.stats().held
    assert b"b2" not in owners.delivered()
    assert ([0], [1], 1) == (
        [copy.held_at for copy in owners.copies(1)[-1:]],
        owners.listed(),
        owners.kinds(1).count("DISCARD"),
    )
    owners.listener = lambda _: State.COMMIT
    (parked,) = owners.operator.parked()
    copy = owners.operator._copy_of(owners.operator.show(parked.transaction_id), "again")
    owners.append_half(owners.proven(copy))
    owners.run(60)
    assert [b"b1", b"b2"] == [body for body in owners.delivered() if body in {b"b1", b"b2"}]
    assert 0 == owner.stats().held


def test_retention_does_not_forget_a_held_half():
    """Its copy is carried forward before half of the retention has passed, and the log forgets the older one."""
    owners, owner = parked_head(half_retention_s=100.0)
    owners.run(200)
    copies = owners.copies(1)
    assert {(0, 1)} == {(copy.held_at, copy.first_position) for copy in copies}
    owner = owners.restart(owner, 30)
    assert (1, []) == (owner.stats().held, owners.delivered())


def test_a_held_half_is_never_judged_again():
    """After a restart from its copy the listener is not asked about it."""
    owners, owner = parked_head(limits=Limits(checkpoint_interval_s=0.0, replay_max=1))
    for number in range(10, 20):
        committed(owners, number, order_key=b"other%d" % number)
    owners.run(30)
    asked = owners.asked.count(1)
    owners.restart(owner, 60)
    assert (asked, ["CHECKED", "DISCARD"]) == (owners.asked.count(1), owners.kinds(1))


def test_a_void_discard_frees_no_key():
    """A DISCARD under an outdated claim parks nothing."""
    owners = Owners(check_max=1_000)
    owners.owned(1, order_key=KEY, check_max=1_000)
    committed(owners, 2)
    owners.start()
    owners.run(5)
    owners.op(OpKind.DISCARD, 1, token=b"outdated" * 2, reason=ParkCode.CHECKS_EXHAUSTED)
    owners.run(20)
    assert [] == owners.delivered()


def test_the_place_of_a_half_is_the_earliest_that_a_copy_knows():
    """A duplicate of a half may be read before its copy, which names the first record; it is released in its turn."""
    owners = Owners(limits=Limits(checkpoint_interval_s=0.0, replay_max=1))
    half = owners.owned(1, order_key=KEY)
    first = int(owners.log(LogKind.HALF)[-1].position)
    final_at = owners.op(OpKind.COMMITTED, 1)
    committed(owners, 2)
    owners.append_half(half)
    folded = {"folded_to": int(owners.log(LogKind.OP)[-1].position), "first_position": first, "final_at": final_at}
    copy = msgspec.structs.replace(half, first_appended_ms=owners.clock.wall_ms(), age_ms=1, **folded)
    owners.append_half(owners.proven(copy))
    owners.trim(LogKind.HALF, first + 1)
    owners.start()
    owners.run(30)
    assert [b"b1", b"b2"] == owners.delivered()


@pytest.mark.parametrize("profile", [RABBITMQ_LIKE, KAFKA_LIKE], ids=lambda profile: profile.name)
def test_many_takeovers_do_not_make_a_held_half_young(profile):
    """Where the broker has no clock the checkpoint's note keeps its age, so that it is carried in time."""
    owners = Owners(profile, check_max=1, half_retention_s=100.0)
    owners.owned(1, order_key=KEY, check_max=1)
    owner = owners.start()
    assert owners.run(30, lambda: owners.kinds(1)[-1:] == ["DISCARD"])
    for number in range(10, 19):
        owner = owners.restart(owner, 15)
        committed(owners, number, order_key=b"other%d" % number)
        owners.run(15)
    committed(owners, 2)
    owners.run(20)
    owner = owners.restart(owner, 20)
    assert (1, [1], True) == (owner.stats().held, owners.listed(), b"b2" not in owners.delivered())


@pytest.mark.parametrize("tells_ages", [False, True])
def test_held_halves_push_no_undecided_one_out_of_a_note(tells_ages):
    """A note has room for some halves; only undecided ones that it names are missed when the log has lost them."""
    held = [pending(number, held_at=0) for number in range(200)]
    undecided = [pending(number) for number in range(200, 220)]
    note = note_of(held + undecided, (), 10_000.0, 3_000, tells_ages=tells_ages)
    entries = msgspec.msgpack.decode(note, type=list[NoteEntry])
    assert {each.transaction_id for each in undecided} <= {entry.transaction_id for entry in entries}
    assert tells_ages == any(entry.is_held for entry in entries)


def pending(number, **extras):
    """Return a half at the position of its number."""
    terms = terms_of(1.0, 1.0, 1, fenced=True)
    made = Pending(transaction_id=name_of(number), position=number, generation=0, terms=terms)
    made.note(order_key=KEY, first_position=number, **extras)
    return made


def test_a_half_of_a_newer_txcore_leaves_no_place_behind():
    """A copy that cannot be decoded replaces the ordered half; its end frees the key."""
    limits = Limits(checkpoint_interval_s=0.0, newer_records=NewerRecords.PARK)
    owners = Owners(check_max=1_000, limits=limits)
    half = owners.owned(1, order_key=KEY, check_max=1_000, immunity_ms=5_000)
    committed(owners, 2)
    owner = owners.start()
    owners.run(2)
    owners.append_half(msgspec.structs.replace(half, generation=1, version=9))
    owners.op(OpKind.ROLLBACK, 1, 1)
    owners.run(30)
    assert ([b"b2"], 0) == (owners.delivered(), len(owner.tenure.state.order))


def test_a_held_half_after_a_gap_is_on_the_list_of_the_operator():
    """The gap may hold its end. It is parked again, also where a fence decides, so that it can be resumed."""
    owners = Owners(fence=AnsweringFence(FenceAnswer.COMMIT))
    held = {"folded_to": 1, "first_position": 1, "held_at": 0, "order_key": KEY, "fenced": True}
    for _ in range(5):
        owners.op(OpKind.NUDGE, 9)
    copy = owners.copied(1, release=1, age_ms=1, first_appended_ms=owners.clock.wall_ms(), **held)
    owners.trim(LogKind.OP, copy.proved_at)
    committed(owners, 2)
    owner = owners.start()
    owners.run(30)
    assert ([(1, ParkCode.COVERAGE_GAP)], [1], [], 1) == (
        owners.parked(),
        owners.listed(),
        owners.delivered(),
        owner.stats().held,
    )
    (parked,) = owners.operator.parked()
    resumed = owners.operator._copy_of(owners.operator.show(parked.transaction_id), "again")
    owners.append_half(owners.proven(resumed))
    owners.run(60)
    assert [b"b1", b"b2"] == owners.delivered()


def test_a_held_half_whose_record_is_gone_before_it_is_parked_again_frees_its_key():
    """It is parked as LOST, and nothing is retried for ever."""
    owners = Owners(limits=Limits(checkpoint_interval_s=0.0, body_bytes_max=1))
    fields = {"folded_to": 1, "first_position": 1, "held_at": 0, "order_key": KEY}
    for _ in range(5):
        owners.op(OpKind.NUDGE, 9)
    copy = owners.copied(1, release=1, age_ms=1, first_appended_ms=owners.clock.wall_ms(), **fields)
    owners.trim(LogKind.OP, copy.proved_at)
    committed(owners, 2)
    owner = owners.start()
    assert owners.run(10, lambda: owner.tenure.state.half_read is not None)
    owners.trim(LogKind.HALF, int(owners.log(LogKind.HALF)[-1].position))
    owners.run(100)
    assert ([(1, ParkCode.LOST)], [b"b2"]) == (owners.parked(), owners.delivered())


def test_a_request_is_void_once_its_half_is_committed():
    """It would make each copy of a half that waits for its turn begin at a place that retention removes."""
    owners, _ = parked_head(half_retention_s=100.0)
    owners.owned(3, order_key=KEY, immunity_ms=5_000, check_max=1_000)
    asked = owners.op(OpKind.FORCE, 3, decision=OpKind.COMMIT, forced=Forced.YES, by="ann", reason="known")
    owners.op(OpKind.COMMITTED, 3)
    owners.run(120)
    assert owners.copies(3)[-1].folded_to > asked + 1


def test_a_held_half_is_carried_before_the_store_forgets_its_ops():
    """A store that remembers resolutions for a time removes older ops; a copy names a place among them."""
    owners, _ = parked_head(NATS_LIKE, resolution_kept_s=100.0)
    owners.run(300)
    copies = owners.copies(1)[1:]
    newest = owners.log(LogKind.HALF)[-1]
    assert (True, {0}) == (5 <= len(copies) <= 7, {copy.held_at for copy in copies})
    assert owners.clock.wall_ms() - newest.appended_ms < 60_000


def test_a_hold_stays_with_its_newest_generation():
    """A copy of an earlier generation, of an outdated owner, does not represent the held half."""
    owners, owner = parked_head()
    (parked,) = owners.operator.parked()
    first = owners.copies(1)[0]
    resumed = owners.operator._copy_of(owners.operator.show(parked.transaction_id), "again")
    owners.append_half(owners.proven(resumed))
    assert owners.run(60, lambda: owners.kinds(1).count("DISCARD") == 2)
    owners.run(5)
    at = {"folded_to": int(owners.log(LogKind.OP)[-1].position), "first_position": 1, "held_at": 0}
    late = msgspec.structs.replace(first, age_ms=1, first_appended_ms=owners.clock.wall_ms(), **at)
    owners.append_half(owners.proven(late))
    owners.run(20)
    (held,) = [seen.held for seen in owner.tenure.state.line if seen.held is not None]
    assert (1, 1) == (held.generation, wire.decode_half(record_at(owners, held.position)).generation)


def record_at(owners, position):
    """Return the bytes of the half log at *position*."""
    return next(record.body for record in owners.log(LogKind.HALF) if record.position == position)


def test_skip_lets_later_halves_pass_a_parked_one():
    """With order_on_park="skip" a parked half is over for the order of its key."""
    owners, _ = parked_head(limits=Limits(checkpoint_interval_s=0.0, order_on_park=OrderOnPark.SKIP))
    assert [b"b2"] == owners.delivered()


def test_a_half_that_waits_for_its_turn_is_not_late():
    """The age of the unreleased is that of the first of a key; what waits for a parked one is no checker's fault."""
    _, owner = parked_head()
    assert (0.0, 1) == (owner.stats().unreleased_age_s, owner.stats().pending)


def test_a_poisoned_record_holds_no_key():
    """Bytes that cannot be decoded are parked; they have no key."""
    owners = Owners()
    owners.broker.append("g", LogKind.HALF, 0, b"stray")
    committed(owners, 2)
    owners.start()
    owners.run(20)
    assert [b"b2"] == owners.delivered()


def test_a_held_half_is_only_held():
    """Whatever it knows of itself, the decision about it is HOLD."""
    _, owner = parked_head()
    (seen,) = [seen for seen in owner.tenure.state.line if seen.held is not None]
    seen.held.commit(5)
    seen.held.due_ms = 0.0
    assert (name_of(1), Decision.HOLD) == (seen.held.transaction_id, decide(seen.held, 9e9, must_carry=False))


def test_an_unknown_policy_is_refused():
    """The error names the setting and its values."""
    with pytest.raises(ConfigError, match='order_on_park is "hold" or "skip"'):
        Limits(order_on_park="wait")
