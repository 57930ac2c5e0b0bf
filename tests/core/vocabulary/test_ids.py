"""Transaction ids ascend, follow RFC 9562, and name their partition for ever."""

from __future__ import annotations

import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from txcore.clock import SystemClock, system_randomness
from txcore.errors import UsageError
from txcore.ids import SHARE, STAY_MS, IdFactory, born_ms, first_id_at, id_text, parse_id, partition_of


def test_ids_of_one_factory_ascend_within_a_millisecond(clock, randomness):
    """On a clock that does not move, ids count up."""
    factory = IdFactory(clock, randomness)
    ids = [factory.new() for _ in range(2_000)]
    assert sorted(set(ids)) == ids
    assert {clock.wall_ms()} == {born_ms(each) for each in ids}


def test_ids_ascend_when_the_clock_goes_back(clock, randomness):
    """A clock set back does not reorder ids: the factory continues the last millisecond."""
    factory = IdFactory(clock, randomness)
    first = factory.new()
    clock.wall_offset_ms = -60_000
    second = factory.new()
    clock.wall_offset_ms = 5
    third = factory.new()
    assert first < second < third
    assert born_ms(first) == born_ms(second)
    assert born_ms(third) == clock.wall_ms()


class Highest:
    def getrandbits(self, k):
        return (1 << k) - 1


def test_an_overflowing_counter_borrows_the_next_millisecond(clock):
    """More ids than the counter holds still ascend."""
    factory = IdFactory(clock, Highest())
    ids = [factory.new()]
    factory._counter |= (1 << 62) - 2
    ids += [factory.new(), factory.new()]
    assert sorted(set(ids)) == ids
    assert born_ms(ids[-1]) == clock.wall_ms() + 1


def test_the_highest_random_numbers_leave_room_to_count_up(clock):
    """The counter does not run into the variant's bits."""
    factory = IdFactory(clock, Highest())
    ids = [factory.new() for _ in range(2_000)]
    assert sorted(set(ids)) == ids
    assert {(uuid.RFC_4122, clock.wall_ms())} == {(uuid.UUID(bytes=each).variant, born_ms(each)) for each in ids}


def test_an_id_is_a_uuid_of_version_7():
    """Version and variant are where RFC 9562 puts them."""
    for _ in range(100):
        made = uuid.UUID(bytes=IdFactory(SystemClock(), system_randomness()).new())
        assert 7 == made.version
        assert uuid.RFC_4122 == made.variant


@pytest.mark.parametrize("count", [2, 3, 4, 8, 13, 64])
def test_ids_of_a_moment_share_few_partitions(clock, randomness, count):
    """Ids of a moment share a quarter of the partitions, rounded up; over time each partition gets its part."""
    factory = IdFactory(clock, randomness)
    seen = Counter()
    for _ in range(8 * count):
        ids = [factory.new(count) for _ in range(20)]
        assert sorted(set(ids)) == ids
        together = Counter(partition_of(each, count) for each in ids)
        assert len(together) <= -(-count // SHARE)
        seen += together
        clock.advance(STAY_MS / 1000)
    assert set(range(count)) == seen.keys()
    assert max(seen.values()) < 2 * min(seen.values())


def test_factories_begin_with_partitions_of_their_own(clock, randomness):
    """Factories begin with different partitions, so that processes do not all send to the same ones at a time."""
    firsts = {partition_of(IdFactory(clock, randomness).new(64), 64) for _ in range(64)}
    assert len(firsts) > 16


def test_ids_made_by_many_threads_are_different():
    """Threads that share a factory get different ids."""
    factory = IdFactory(SystemClock(), system_randomness())
    with ThreadPoolExecutor(8) as pool:
        ids = [each for made in pool.map(lambda _: [factory.new() for _ in range(500)], range(8)) for each in made]
    assert 4_000 == len(set(ids))


def test_text_and_bytes_are_two_forms_of_one_id(clock, randomness):
    """The text of an id is the canonical UUID form, and gives the same bytes when parsed."""
    identity = IdFactory(clock, randomness).new()
    assert str(uuid.UUID(bytes=identity)) == id_text(identity)
    assert identity == parse_id(id_text(identity))


def test_text_that_is_no_id_is_refused_by_name():
    """The error about a text that is no id repeats that text."""
    with pytest.raises(UsageError, match="'nonsense' is not a transaction id"):
        parse_id("nonsense")


def test_the_first_id_of_a_time_is_below_every_id_made_then(clock, randomness):
    """The first id of a time is not above an id born at that time or later, and above one born before."""
    horizon = first_id_at(clock.wall_ms())
    factory = IdFactory(clock, randomness)
    assert horizon <= factory.new()
    clock.advance(-1)
    assert horizon > IdFactory(clock, randomness).new()
    assert 7 == uuid.UUID(bytes=horizon).version


def test_the_partition_of_an_id_never_changes():
    """Producers and checkers of all versions agree on the partition of an id; the test pins two."""
    assert [1, 2] == [partition_of(bytes(16), 4), partition_of(b"\xff" * 16, 8)]


def test_partitions_share_the_ids_out():
    """Each partition gets a fair part of the ids."""
    factory = IdFactory(SystemClock(), system_randomness())
    counts = [0] * 4
    for _ in range(4_000):
        counts[partition_of(factory.new(), 4)] += 1
    assert min(counts) > 800
