"""Transaction ids ascend, follow RFC 9562, and name their partition for ever."""

from __future__ import annotations

import copy
import json
import pickle
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from txcore import wire
from txcore.clock import SystemClock, system_randomness
from txcore.errors import UsageError
from txcore.history.journey import Journey
from txcore.ids import (
    SHARE,
    STAY_MS,
    IdFactory,
    TransactionId,
    born_ms,
    first_id_at,
    id_text,
    known_id,
    parse_id,
    partition_of,
)
from txcore.message import LocalTransactionState
from txcore.records import Half
from txcore.results import EndResult, EndState, TransactionSendResult


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


def test_many_ids_ascend_and_fall_into_all_partitions(clock, randomness):
    """Ids made together ascend, also among those made one by one, and use one reading of the clock."""
    factory = IdFactory(clock, randomness)
    made = [factory.new(), *factory.many(400), factory.new(), *factory.many(1)]
    assert sorted(set(made)) == made
    assert len({each[:8] for each in made}) == 1
    together = Counter(partition_of(each, 4) for each in made)
    assert min(together.values()) > 60


def test_many_ids_borrow_the_next_millisecond_when_the_counter_is_full(clock):
    """Many ids never count beyond the random part of an id."""
    factory = IdFactory(clock, Highest())
    ids = factory.many(2)
    factory._counter |= (1 << 62) - 2
    ids += factory.many(2)
    assert sorted(set(ids)) == ids
    assert born_ms(ids[-1]) == clock.wall_ms() + 1


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


class TestTransactionId:
    TEXT = "0190b6f0-0000-7000-8000-0000000000fe"
    ID = TransactionId.parse(TEXT)

    def test_it_prints_as_the_text(self):
        """`str`, f-strings with and without a width, `%s` and `decode` give the text; `repr` names the class."""
        assert [self.TEXT] * 4 == [str(self.ID), f"{self.ID}", "%s" % self.ID, self.ID.decode()]  # noqa: UP031
        assert f"{self.TEXT}    " == f"{self.ID:40}"
        assert f"TransactionId('{self.TEXT}')" == repr(self.ID)

    def test_it_is_its_bytes(self):
        """Equality, hash, order and length are those of the 16 bytes; `bytes` gives them without the type."""
        raw = bytes(self.ID)
        assert type(raw) is bytes
        assert (self.ID, {self.ID}, 16) == (raw, {raw}, len(self.ID))
        assert self.ID < TransactionId.parse(self.TEXT.replace("fe", "ff"))
        assert self.ID == known_id(raw) == TransactionId(raw)

    def test_it_is_parsed_in_every_spelling(self):
        """Upper case and a text without hyphens are the same id."""
        spellings = [self.TEXT.upper(), self.TEXT.replace("-", "")]
        assert [self.ID] * 2 == [TransactionId.parse(each) for each in spellings]

    @pytest.mark.parametrize("value", ["nonsense", "", None, 5, bytes(16)])
    def test_a_value_that_is_no_text_of_an_id_is_refused(self, value):
        """`parse` refuses everything else with one error, which repeats the value."""
        with pytest.raises(UsageError, match="is not a transaction id") as raised:
            TransactionId.parse(value)
        assert repr(value) in str(raised.value)

    @pytest.mark.parametrize("value", [b"", bytes(15), bytes(17), TEXT, None, 16])
    def test_only_16_bytes_make_one(self, value):
        """The constructor takes 16 bytes, and names `parse` for a text."""
        with pytest.raises(UsageError, match=r"has 16 bytes, not .*; TransactionId\.parse reads its text"):
            TransactionId(value)

    def test_it_knows_when_it_was_made(self, clock, randomness):
        """`born_ms` is the wall clock of the producer when the transaction began."""
        assert clock.wall_ms() == TransactionId(IdFactory(clock, randomness).new()).born_ms

    def test_copies_have_the_type(self):
        """A copy, a deep copy and an unpickled one are TransactionIds."""
        made = [copy.copy(self.ID), copy.deepcopy(self.ID), pickle.loads(pickle.dumps(self.ID))]
        assert [repr(self.ID)] * 3 == [repr(each) for each in made]

    def test_json_and_msgspec_take_it_with_their_hooks(self):
        """`default=str` of json and `enc_hook=str` of msgspec write the text; `dec_hook` reads it."""
        assert f'"{self.TEXT}"' == json.dumps(self.ID, default=str)
        written = msgspec.json.encode(EndResult(EndState.ACCEPTED, self.ID), enc_hook=str)
        assert {"state": "ACCEPTED", "transaction_id": self.TEXT, "error": None} == json.loads(written)
        assert self.ID == msgspec.convert(self.TEXT, TransactionId, dec_hook=lambda kind, text: kind.parse(text))

    def test_records_take_it(self):
        """A half with a TransactionId has the same bytes on the wire as one with plain bytes."""
        halves = [Half(1, each, "g", 0, 0, 0, 0, 0, 0, False, "p", []) for each in (self.ID, bytes(self.ID))]
        assert 1 == len({wire.encode_half(half) for half in halves})

    def test_results_print_on_one_line(self):
        """Results show ids as text and states by their names."""
        end = EndResult(EndState.ACCEPTED, self.ID)
        shown = f"EndResult(state=EndState.ACCEPTED, transaction_id=TransactionId('{self.TEXT}'), error=None)"
        assert (shown, f"ACCEPTED {self.TEXT}") == (repr(end), str(end))
        sent = TransactionSendResult(self.ID, LocalTransactionState.COMMIT, end)
        assert "local_transaction_state=LocalTransactionState.COMMIT, end=EndResult(" in repr(sent)
        assert repr(Journey(self.ID, 3)) == (
            f"Journey(TransactionId('{self.TEXT}'), partition=3, generation=-1, state='unknown')"
        )
