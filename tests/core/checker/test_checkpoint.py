"""The checkpoint's note keeps the ages of halves for brokers without a clock: a restart must know what expires soon."""

from __future__ import annotations

import random
from unittest import mock

import msgspec
import pytest
from txcore_conformance.owners import Owners, name_of

from txcore.checker.checkpoint import NoteEntry, copy_age_of, note_of, noted_in, spread_of
from txcore.checker.decide import Pending, terms_of
from txcore.memory import RABBITMQ_LIKE
from txcore.message import LocalTransactionState
from txcore.records import Checkpoint, LogKind

TERMS = terms_of(1000.0, 1000.0, 3, fenced=False)


def halves(*stored_ms):
    """Return undecided halves that were stored at these times, in log order."""
    return [
        Pending(
            transaction_id=name_of(position),
            position=position,
            generation=0,
            terms=TERMS,
            immune_until_ms=stored + 1000.0,
        )
        for position, stored in enumerate(stored_ms)
    ]


def seconds(item):
    """Return the time of an item; the items of these tests are plain times."""
    return float(item)


@pytest.mark.parametrize("count_max", [0, 1, 2, 3, 10, 100])
def test_a_spread_has_room(count_max):
    """A spread has at most `count_max` items, in order, for any number and any ages of halves."""
    rng = random.Random(1)
    for count in (0, 1, 2, 5, 1_000):
        times = sorted(float(rng.randrange(1, 10 ** rng.randrange(1, 9))) for _ in range(count))
        chosen = spread_of(times, count_max, seconds)
        assert len(chosen) <= count_max
        assert chosen == sorted(chosen)
        if count and count_max:
            assert chosen[-1] == times[-1]


def test_the_last_of_those_that_are_equally_old_represents_them():
    """The last of equally old halves represents them, because no half before it in the log is younger."""
    items = [(1.0, "a"), (1.0, "b"), (1.0, "c"), (2.0, "d"), (3.0, "e"), (3.0, "f")]
    assert ["c", "d", "f"] == [name for _, name in spread_of(items, 3, lambda item: item[0])]


def test_ages_do_not_fade_from_restart_to_restart():
    """While halves come and end over 200 restarts, each age changes by less than a quarter of the span."""
    rng, true_ms, taken_ms = random.Random(2), {}, {}
    for restart in range(200):
        for number in range(5):
            identity = restart * 5 + number
            true_ms[identity] = taken_ms[identity] = restart * 1000.0 + number
        for identity in rng.sample(sorted(taken_ms), len(taken_ms) // 25):
            del taken_ms[identity]
        log = sorted(taken_ms)
        chosen = spread_of(log, 25, taken_ms.__getitem__)
        for identity in log:
            taken_ms[identity] = taken_ms[next(each for each in chosen if each >= identity)]
    span_ms = 200 * 1000.0
    assert max(taken_ms[identity] - true_ms[identity] for identity in taken_ms) < span_ms / 4


def test_a_note_holds_the_oldest_halves_and_ages_from_all_over_the_log():
    """Half of a note's room is for the oldest halves, and half for ages from all over the log."""
    note = note_of(halves(*map(float, range(0, 1_000_000, 1_000))), (), 1_000_000.0, 3_000, tells_ages=True)
    entries = noted_in(Checkpoint(None, None, b"", note))
    assert len(note) <= 3_000
    assert list(range(20)) == [entry.position for entry in entries[:20]]
    assert 999 == entries[-1].position
    assert 830_000 <= copy_age_of(entries, 100) <= 900_000
    assert copy_age_of(entries, 1_000) is None


def test_a_note_without_places_is_read():
    """A note of an older version, which has no places, is read."""
    note = msgspec.msgpack.encode([(name_of(7), 0, 1, 5_000)])
    entries = noted_in(Checkpoint(None, None, b"", note))
    assert [NoteEntry(name_of(7), 0, 1, 5_000)] == entries
    assert copy_age_of(entries, 3) is None


def no_answer(_):
    """Raise an error, as a listener does whose database is away."""
    raise RuntimeError("away")


@pytest.mark.parametrize("count", [50, 250])
def test_undecided_halves_outlive_retention_however_often_owners_restart(count):
    """Undecided halves survive retention, though a note has no room for all and each owner lives for a part of it."""
    world = Owners(RABBITMQ_LIKE, listener=no_answer)
    for number in range(100, 100 + count):
        world.half(number, immunity_ms=1_000, interval_ms=30_000)
    owner = world.start()
    for restart in range(9):
        world.run(100)
        world.half(5_000 + restart)
        world.commit(5_000 + restart)
        owner = world.restart(owner, 0)
    world.listener = lambda _: LocalTransactionState.COMMIT
    world.run(200)
    assert {b"b%d" % number for number in range(100, 100 + count)} <= set(world.delivered())
    assert len(world.log(LogKind.HALF)) < 10 * count


def test_an_owner_that_lives_long_carries_a_half_once_for_each_half_of_the_retention():
    """An owner carries a half once for each half of the retention, because a copy's age counts from its append."""
    world = Owners(RABBITMQ_LIKE, listener=no_answer)
    for number in range(100, 200):
        world.half(number, interval_ms=30_000)
    owner = world.start()
    world.run(1_000)
    assert 300 == owner.context.counts["carried"]


def test_a_note_keeps_what_was_not_read_again():
    """A note keeps the half of the last note, with its age, when the half log was silent and it was not read again."""
    world = Owners(RABBITMQ_LIKE, listener=no_answer)
    world.half(7)
    owner = world.start()
    world.run(50)
    with mock.patch.object(world.faults, "readable", side_effect=lambda kind, _, count: count * (kind is LogKind.OP)):
        owner = world.restart(owner, 10)
    (entry,) = noted_in(world.checkpoint())
    assert name_of(7) == entry.transaction_id
    world.half(8)
    world.trim(LogKind.HALF, 2)
    world.restart(owner)
    assert [7] == world.listed()
