"""The state of a partition, folded from its logs: the undecided halves, the due ones, the bounds of a checkpoint."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from txcore.checker.carrying import copy_of
from txcore.checker.checkpoint import checkpoint_of, noted_in
from txcore.checker.decide import Extras, Pending, terms_of
from txcore.checker.partition_state import PartitionState
from txcore.op_rules import reply_count
from txcore.records import COUNT_MAX, WALL_MS_MAX, Checkpoint, Half, Op, OpKind, ParkCode, Position

A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))
OURS, THEIRS = b"ours" * 4, b"them" * 4


def pending(identity, position, generation=0, **changes):
    """Return a half as the log reader makes it."""
    start_ms = changes.pop("start_ms", 0.0)
    made = Pending(
        transaction_id=identity,
        position=position,
        generation=generation,
        terms=terms_of(100.0, 0.0, 3, fenced=False),
        immune_until_ms=start_ms + 100.0,
        due_ms=100.0,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def place_of(half):
    """Return the place that a copy names, and the claim in force there."""
    return half.folded_to, half.token


class Partition:
    """A state with short methods for the records that it reads."""

    def __init__(self, checkpoint=None):
        self.state = PartitionState(checkpoint)

    def half(self, position, identity, generation=0, folded_to=-1, **changes):
        made = pending(identity, position, generation, **changes)
        self.state.read_half(position, made, folded_to)
        return made

    def op(self, position, kind, identity=A, **fields):
        return self.state.read_op(position, Op(kind, identity, **fields))

    def claim(self, position, token):
        return self.op(position, OpKind.CLAIM, token, token=token)

    def bounds(self, size=3_000):
        made = checkpoint_of(self.state, (), 0.0, size)
        return made.half, made.op


@pytest.fixture
def partition():
    """An empty partition."""
    return Partition()


class TestCheckpoint:
    def test_nothing_read_gives_no_bounds(self, partition):
        """A checkpoint has no bounds before a record was read."""
        assert (None, None) == partition.bounds()

    def test_it_is_a_pair(self, partition):
        """The op bound is the first op of any half at or after the half bound, not the reading position."""
        partition.half(1, A)
        partition.half(2, B)
        partition.op(10, OpKind.COMMIT, B)
        partition.op(20, OpKind.TICK, C)
        assert (1, 10) == partition.bounds()

    def test_it_passes_a_half_once_its_end_was_read_back(self, partition):
        """Before the end was read back, the checkpoint does not pass the half."""
        partition.half(1, A)
        partition.half(2, B)
        assert (1, None) == partition.bounds()
        partition.op(10, OpKind.COMMIT, A)
        assert (2, 10) == partition.bounds()

    def test_the_ops_of_passed_halves_are_passed(self, partition):
        """The ops of a passed half do not hold the op bound."""
        partition.half(1, A)
        partition.half(2, B)
        partition.op(10, OpKind.COMMIT, A)
        partition.op(11, OpKind.CHECKED, B, count=1)
        assert (2, 11) == partition.bounds()

    def test_the_ops_before_a_carried_copy_are_passed(self, partition):
        """The ops before a copy's `folded_to` do not hold the op bound, even while the half stays open."""
        partition.half(1, A)
        partition.op(10, OpKind.CHECKED, A, count=1)
        partition.half(2, B)
        partition.half(3, A, folded_to=20)
        partition.op(21, OpKind.COMMIT, B)
        partition.op(22, OpKind.CHECKED, A, count=2)
        assert (3, 22) == partition.bounds()

    def test_an_op_whose_half_was_not_read_yet_binds(self, partition):
        """An op whose half was not read yet holds the op bound, because a restart would lose it otherwise."""
        partition.op(5, OpKind.COMMIT, A)
        partition.op(9, OpKind.TICK, C)
        assert (None, 5) == partition.bounds()

    def test_its_token_is_the_one_in_force_at_the_op_bound(self, partition):
        """A checkpoint's token is the one in force at its op bound, so that a restart judges the ops alike."""
        partition.claim(1, THEIRS)
        partition.half(1, A)
        partition.op(2, OpKind.CHECKED, A, token=THEIRS, count=1)
        partition.claim(3, OURS)
        partition.op(4, OpKind.TICK, C)
        made = checkpoint_of(partition.state, (), 0.0, 3_000)
        assert (2, THEIRS) == (made.op, made.token)

    def test_a_restart_from_it_comes_to_the_same_state(self, partition):
        """Reading again from both bounds gives the same undecided halves with the same counts."""
        ops = [
            (1, OpKind.CLAIM, OURS, {"token": OURS}),
            (2, OpKind.CHECKED, B, {"token": OURS, "count": 1}),
            (3, OpKind.COMMIT, A, {}),
            (4, OpKind.CHECKED, B, {"token": OURS, "count": 2}),
        ]
        partition.half(1, A)
        partition.half(2, B)
        for position, kind, identity, fields in ops:
            partition.op(position, kind, identity, **fields)
        made = checkpoint_of(partition.state, (), 0.0, 3_000)
        again = Partition(made)
        for position, identity in ((1, A), (2, B)):
            if position >= made.half:
                again.half(position, identity)
        for position, kind, identity, fields in ops:
            if position >= made.op:
                again.op(position, kind, identity, **fields)
        assert {B: 2} == {key: value.count for key, value in again.state.pending.items()}
        assert OURS == again.state.token

    def test_its_note_remembers_ages(self, partition):
        """A checkpoint's note holds ages, from which a restart counts immunity on brokers without a clock."""
        partition.half(1, A, start_ms=0.0)
        made = checkpoint_of(partition.state, (), 5_000.0, 3_000)
        assert [(A, 5_000)] == [(entry.transaction_id, entry.age_ms) for entry in noted_in(made)]

    def test_its_note_is_bounded(self, partition):
        """A note is never larger than the backend stores, however large its numbers are."""
        for number in range(1, 200):
            partition.half(number, number.to_bytes(16, "big"), generation=COUNT_MAX, count=COUNT_MAX)
        for now_ms in (0.0, float(WALL_MS_MAX)):
            assert 0 < len(checkpoint_of(partition.state, (), now_ms, 400).note) <= 400
        assert b"" == checkpoint_of(partition.state, (), 0.0, 0).note

    def test_a_damaged_note_is_no_note(self):
        """A damaged note is ignored, because a note holds only hints."""
        assert [] == noted_in(Checkpoint(None, None, b"", b"\xc1garbage"))


class TestOrphans:
    def test_an_op_read_before_its_half_closes_it(self, partition):
        """A COMMIT closes its half even if it is read before the half."""
        partition.op(5, OpKind.COMMIT, A)
        assert partition.half(1, A).is_closed
        assert {} == partition.state.pending

    def test_they_are_dropped_once_no_half_is_to_come(self, partition):
        """Ops whose halves cannot follow are dropped, so that they do not hold the op bound for ever."""
        partition.op(5, OpKind.COMMIT, A)
        partition.op(6, OpKind.COMMIT, B)
        assert 1 == partition.state.drop_orphans(5)
        assert (None, 6) == partition.bounds()

    def test_after_a_restart_only_new_ones_are_strange(self):
        """Ops read again may be of halves that the checkpoint has passed; an op written since then is of none."""
        state = PartitionState(Checkpoint(Position(7), Position(5), OURS))
        state.read_op(Position(5), Op(OpKind.COMMIT, A))
        state.begin_live()
        state.read_op(Position(6), Op(OpKind.COMMIT, B))
        assert 1 == state.drop_orphans(6)
        assert {} == state.early_ops

    @pytest.mark.parametrize("is_known", [True, False])
    @pytest.mark.parametrize(
        ("kind", "fields", "found"),
        [
            (OpKind.DISCARD, {"token": OURS, "reason": "UNDELIVERABLE"}, None),
            (OpKind.DECIDED, {"token": OURS, "decision": OpKind.COMMIT}, (OpKind.COMMIT, 0, False)),
            (OpKind.CHECKED, {"token": OURS, "count": 2}, (0, 2, False)),
            (OpKind.FORCE, {"decision": OpKind.COMMIT}, (0, 0, True)),
            (OpKind.COMMIT, {}, None),
        ],
    )
    def test_an_op_of_the_next_generation_waits_for_its_half(self, partition, is_known, kind, fields, found):
        """An op that is read before the resumed half that it is about waits for that half."""
        partition.claim(1, OURS)
        if is_known:
            partition.half(1, A)
        partition.op(2, OpKind.DISCARD, A, token=OURS, reason="CHECKS_EXHAUSTED")
        partition.op(3, kind, A, generation=1, **fields)
        assert is_known == (partition.bounds()[0] == 1)
        if not is_known:
            partition.half(1, A)
        partition.half(2, A, generation=1)
        pending = partition.state.pending.get(A)
        if found is None:
            assert pending is None
        else:
            assert found == (pending.decision, pending.count, pending.extras.force is not None)

    def test_an_op_of_the_next_generation_holds_the_op_bound(self, partition):
        """An op holds the op bound until its resumed half was read, because a restart must read it again."""
        partition.half(1, A)
        partition.op(2, OpKind.DISCARD, A)
        partition.half(2, B)
        partition.op(3, OpKind.DECIDED, A, generation=1, decision=OpKind.COMMIT)
        partition.op(9, OpKind.TICK, C)
        assert (2, 3) == partition.bounds()


class TestFinals:
    def test_the_first_in_log_order_wins(self, partition):
        """The first final op in log order holds; a contrary one changes nothing and is reported."""
        partition.half(1, A)
        partition.half(2, B)
        partition.op(10, OpKind.COMMIT, A)
        partition.op(11, OpKind.ROLLBACK, A, by="late")
        assert {A: OpKind.COMMIT, B: 0} == dict(partition.state.closings())
        first, second = partition.state.conflicts.pop()
        assert (A, OpKind.COMMIT, "late") == (second.transaction_id, first, second.by)

    def test_it_is_reported_after_the_checkpoint_too(self, partition):
        """A contrary final op is reported after a checkpoint, too, because ends are remembered for a while."""
        partition.half(1, A)
        partition.half(2, B)
        partition.op(10, OpKind.COMMIT, A)
        partition.bounds()
        partition.op(11, OpKind.ROLLBACK, A)
        assert [A] == [op.transaction_id for _, op in partition.state.conflicts]

    def test_an_equal_one_is_no_conflict(self, partition):
        """A second, equal final op is no conflict, because producer and checker may both write it."""
        partition.half(1, A)
        partition.op(10, OpKind.COMMIT, A)
        partition.op(11, OpKind.COMMIT, A)
        assert [] == partition.state.conflicts

    def test_it_counts_under_any_token(self, partition):
        """A final op counts under any writer's token (R7)."""
        partition.claim(1, OURS)
        half = partition.half(1, A)
        assert partition.op(2, OpKind.ROLLBACK, A, token=THEIRS)
        assert half.is_closed


class TestTokens:
    @pytest.mark.parametrize("kind", [OpKind.CHECKED, OpKind.DECIDED, OpKind.DISCARD])
    def test_what_an_earlier_owner_writes_late_is_ignored(self, partition, kind):
        """An op that a replaced owner writes late does not count, and binds no checkpoint (R13)."""
        partition.claim(1, OURS)
        half = partition.half(1, A)
        assert not partition.op(2, kind, A, token=THEIRS, count=3, decision=OpKind.COMMIT)
        assert (0, 0, False) == (half.count, half.decision, half.is_closed)

    def test_what_the_owner_writes_counts(self, partition):
        """Ops of the owner count under the newest claim."""
        partition.claim(1, THEIRS)
        partition.claim(2, OURS)
        half = partition.half(1, A)
        assert partition.op(3, OpKind.CHECKED, A, token=OURS, count=2)
        assert 2 == half.count


class TestJournal:
    def test_a_nudge_brings_the_check_forward_to_the_end_of_immunity(self, partition):
        """A NUDGE brings the check forward, but never into immunity."""
        partition.half(1, A, due_ms=9_000.0)
        partition.op(2, OpKind.NUDGE, A)
        assert 100.0 == partition.state.next_due_ms()

    def test_an_operators_request_waits_for_the_owner_and_its_reply_ends_it(self, partition):
        """A request ends with a reply that has the token in force and names the request's place."""
        partition.claim(1, OURS)
        half = partition.half(1, A)
        partition.op(2, OpKind.FORCE, A, decision=OpKind.COMMIT, by="anna")
        partition.op(3, OpKind.FORCE, A, decision=OpKind.ROLLBACK, by="bob")
        partition.op(4, OpKind.FORCE, A, token=OURS, count=reply_count(2), reason="refused")
        assert "bob" == half.extras.force.by
        assert not partition.op(5, OpKind.FORCE, A, token=THEIRS, count=reply_count(3), reason="refused")
        assert "bob" == half.extras.force.by
        partition.op(6, OpKind.FORCE, A, token=OURS, count=reply_count(3), reason="refused")
        assert half.extras.force is None

    def test_the_first_decision_stays(self, partition):
        """The first DECIDED of a half holds, and a later one changes nothing."""
        half = partition.half(1, A)
        partition.op(2, OpKind.DECIDED, A, decision=OpKind.COMMIT)
        partition.op(3, OpKind.DECIDED, A, decision=OpKind.ROLLBACK)
        assert (OpKind.COMMIT, True, 0.0) == (half.decision, half.is_journaled, half.due_ms)

    @pytest.mark.parametrize(
        ("reason", "is_closed"), [(ParkCode.CHECKS_EXHAUSTED, False), (ParkCode.UNDELIVERABLE, True)]
    )
    def test_a_discard_after_a_decision_is_void_unless_undeliverable(self, partition, reason, is_closed):
        """A DISCARD after a DECIDED is void, because the owner publishes; for an undeliverable half it holds."""
        half = partition.half(1, A)
        partition.op(2, OpKind.DECIDED, A, decision=OpKind.COMMIT)
        partition.op(3, OpKind.DISCARD, A, reason=reason)
        assert is_closed == half.is_closed

    def test_a_check_of_another_generation_does_not_count(self, partition):
        """A check of an earlier generation does not count for a resumed half."""
        half = partition.half(1, A, generation=1)
        partition.op(2, OpKind.CHECKED, A, generation=0, count=3)
        assert 0 == half.count

    def test_a_final_op_closes_a_discarded_half_for_good(self, partition):
        """A final op closes a discarded half for ever, and a resume after it stays closed."""
        partition.half(1, A)
        partition.op(2, OpKind.DISCARD, A)
        partition.op(3, OpKind.COMMIT, A)
        assert [] == partition.state.conflicts
        partition.half(4, A, generation=1)
        assert {} == partition.state.pending


class TestCopies:
    def test_a_resume_opens_the_next_generation(self, partition):
        """A DISCARD closes copies up to its generation, and leaves a resumed half open."""
        partition.half(1, A)
        partition.op(2, OpKind.DISCARD, A, generation=0)
        assert {} == partition.state.pending
        resumed = partition.half(3, A, generation=1)
        assert {A: resumed} == partition.state.pending
        partition.op(4, OpKind.DISCARD, A, generation=0)
        assert not resumed.is_closed

    def test_a_second_copy_of_a_discarded_generation_stays_closed(self, partition):
        """A carried copy that lands after the DISCARD of its generation stays closed."""
        partition.half(1, A)
        partition.op(2, OpKind.DISCARD, A, generation=0)
        partition.half(3, A, generation=0)
        assert {} == partition.state.pending

    def test_copies_of_one_generation_merge(self, partition):
        """Copies merge to the highest count, the earliest start and the newest place; the old place is passed."""
        first = partition.half(1, A, count=1, start_ms=50.0)
        partition.half(7, A, count=2, start_ms=60.0, extras=Extras(copied_ms=60.0))
        assert [first] == list(partition.state.pending.values())
        assert (7, 2, 50.0, 60.0) == (first.position, first.count, first.start_ms, first.copied_ms)
        assert 7 == partition.bounds()[0]

    def test_an_older_generation_after_a_newer_one_changes_nothing(self, partition):
        """A carried copy of an earlier generation changes nothing after a resume."""
        newer = partition.half(3, A, generation=1)
        partition.half(4, A, generation=0)
        assert {A: newer} == partition.state.pending

    def test_a_newer_generation_takes_the_decision_along(self, partition):
        """A resumed half keeps its decision, so that it is never asked about again."""
        partition.half(1, A)
        partition.op(2, OpKind.DECIDED, A, decision=OpKind.COMMIT, forced=1)
        newer = partition.half(3, A, generation=1)
        assert (OpKind.COMMIT, True, 1) == (newer.decision, newer.is_journaled, newer.extras.forced)

    def test_a_first_read_copy_looks_back_to_where_its_journal_was_folded(self, partition):
        """A copy that is read first needs the ops from `folded_to` on, also those before the reader's start."""
        assert (40, b"") == partition.half(1, A, folded_to=40).extras.look_back
        assert partition.half(2, B).extras.look_back is None

    def test_looking_back_counts_only_what_was_in_force_then(self, partition):
        """An op that is looked back for counts only under the token that was in force at its place."""
        half = partition.half(1, A, folded_to=40)
        half.note(look_back=None)
        partition.state.look_back(half, Op(OpKind.CHECKED, A, count=1, token=THEIRS), 41, OURS)
        assert 0 == half.count
        partition.state.look_back(half, Op(OpKind.CHECKED, A, count=1, token=OURS), 42, OURS)
        partition.state.look_back(half, Op(OpKind.COMMIT, A), 43, OURS)
        partition.state.look_back(half, Op(OpKind.CHECKED, A, count=2, token=OURS), 44, OURS)
        assert (1, True) == (half.count, half.is_closed)

    def test_an_op_that_a_checkpoint_passed_does_not_bind_the_next_one_when_it_is_read_again(self):
        """An op before the last checkpoint binds no later one when it is read again, as its claim is forgotten."""
        partition = Partition(Checkpoint(4, 16, THEIRS, b""))
        half = partition.half(4, A, folded_to=6)
        partition.claim(17, OURS)
        half.note(look_back=None)
        for position in (8, 10):
            partition.state.look_back(half, Op(OpKind.COMMIT, A), position, THEIRS)
        assert (4, 17) == partition.bounds()

    def test_after_a_gap_a_newer_copy_is_read_from_its_own_place(self, partition):
        """A resumed copy names the claim at its place, which may be gone from the log: its own place counts."""
        partition.half(1, A)
        newer = partition.half(2, A, generation=1, folded_to=40)
        assert newer.extras.look_back is None
        partition.state.lose_ops()
        assert (40, b"") == newer.extras.look_back
        assert (50, b"") == partition.half(3, A, generation=2, folded_to=50).extras.look_back

    def test_a_gap_has_copies_looked_back_for(self, partition):
        """After ops were lost, an undecided half is what its newest copy holds, and what follows the copy's place."""
        half, other = partition.half(1, A), partition.half(2, B)
        partition.half(3, A, folded_to=40)
        assert half.extras.look_back is None
        partition.state.lose_ops()
        assert ((40, b""), None) == (half.extras.look_back, other.extras.look_back)
        partition.half(4, A, folded_to=50)
        partition.half(5, A, folded_to=45)
        assert (50, b"") == half.extras.look_back

    @pytest.mark.parametrize(("folded_to", "is_open"), [(1, True), (2, True), (5, False)])
    def test_a_copy_that_begins_after_a_request_says_that_it_was_answered(self, partition, folded_to, is_open):
        """A copy's journal begins at an open request. Its reply may not count here: retention has removed the claim."""
        half = partition.half(1, A)
        partition.op(2, OpKind.FORCE, A, decision=OpKind.COMMIT, by="anna")
        assert not partition.op(3, OpKind.FORCE, A, token=OURS, count=reply_count(2), reason="refused")
        partition.half(2, A, folded_to=folded_to)
        assert is_open is (half.extras.force is not None) is (half.extras.force_at is not None)

    def test_a_copy_brings_the_decision_that_it_holds(self, partition):
        """A copy holds the first decision, also where retention has removed the op; it is carried out at once."""
        half = partition.half(1, A)
        partition.half(2, A, folded_to=40, decision=OpKind.COMMIT, is_journaled=True)
        assert (OpKind.COMMIT, True, 0.0) == (half.decision, half.is_journaled, partition.state.next_due_ms())

    def test_only_a_copy_from_a_gap_names_no_place(self, partition):
        """A copy holds what its owner has read, also of a half whose target refuses; after a gap it does not."""
        half = partition.half(1, A)
        partition.claim(7, OURS)
        tenure = SimpleNamespace(
            state=partition.state, now_ms=lambda: 5.0, broker_ms=lambda ms: ms, has_server_time=True
        )
        record = Half(1, A, "g", 0, 0, 0, 0, 0, 3, False, "p", [])
        half.note(park=(ParkCode.UNDELIVERABLE, "the target refuses"))
        assert (7, OURS) == place_of(copy_of(tenure, record, half))
        half.note(park=(ParkCode.COVERAGE_GAP, "ops are gone"))
        assert (-1, b"") == place_of(copy_of(tenure, record, half))
        half.note(copied_from=(3, THEIRS))
        assert (3, THEIRS) == place_of(copy_of(tenure, record, half))

    @pytest.mark.parametrize("decision", [0, OpKind.COMMIT])
    def test_a_copy_from_a_gap_parks_only_what_is_undecided(self, partition, decision):
        """Its writer did not know the lost ops; a decision that this owner knows holds in spite of them."""
        half = partition.half(1, A, decision=decision)
        gap = (ParkCode.COVERAGE_GAP, "ops are gone")
        partition.half(2, A, extras=Extras(park=gap))
        assert half.extras.park == (None if decision else gap)

    def test_until_it_was_looked_back_for_only_a_final_op_counts(self, partition):
        """A DISCARD counts only after the look-back, because an earlier DECIDED would make it void."""
        partition.claim(50, OURS)
        half = partition.half(1, A, folded_to=40)
        partition.op(51, OpKind.DISCARD, A, token=OURS, reason="CHECKS_EXHAUSTED")
        assert not half.is_closed
        half.note(look_back=None)
        decided = Op(OpKind.DECIDED, A, token=OURS, decision=OpKind.COMMIT)
        partition.state.look_back(half, decided, 45, OURS)
        partition.state.look_back(half, Op(OpKind.DISCARD, A, token=OURS, reason="CHECKS_EXHAUSTED"), 51, OURS)
        assert (OpKind.COMMIT, False) == (half.decision, half.is_closed)
        other = partition.half(2, B, folded_to=40)
        partition.op(52, OpKind.COMMIT, B)
        assert other.is_closed


class TestEnded:
    def test_a_half_whose_end_was_read_before_it_is_closed_at_once(self, partition):
        """A half that is read after its end is closed at once, with the bounds of the other reading order."""
        partition.op(7, OpKind.COMMIT, A)
        partition.op(8, OpKind.TICK, C)
        assert 1 == len(partition.state.early_ops)
        assert partition.state.read_ended(1, A, 0)
        assert 0 == len(partition.state.early_ops)
        partition.half(2, B)
        assert (2, 8) == partition.bounds()
        assert {B} == set(partition.state.pending)
        assert {(A, OpKind.COMMIT), (B, 0)} == set(partition.state.closings())

    def test_it_binds_the_checkpoint_as_long_as_an_older_one_is_open(self, partition):
        """The end of a half that was closed at once holds the op bound while an older half is open."""
        partition.half(1, B)
        partition.op(7, OpKind.COMMIT, A)
        partition.op(8, OpKind.TICK, C)
        assert partition.state.read_ended(2, A, 0)
        assert (1, 7) == partition.bounds()
        assert 2 == partition.state.replay_count

    def test_a_contradiction_after_it_is_reported(self, partition):
        """A contrary final op for a half that was closed at once is reported."""
        partition.op(7, OpKind.COMMIT, A)
        partition.state.read_ended(1, A, 0)
        partition.op(8, OpKind.ROLLBACK, A)
        assert [A] == [op.transaction_id for _, op in partition.state.conflicts]

    @pytest.mark.parametrize("kind", [OpKind.NUDGE, OpKind.CHECKED, OpKind.DISCARD])
    def test_every_other_one_is_left_alone(self, partition, kind):
        """`read_ended` returns False for a half without an op, or with another op before its end."""
        assert not partition.state.read_ended(1, A, 0)
        partition.op(7, kind, A)
        partition.op(8, OpKind.COMMIT, A)
        assert not partition.state.read_ended(1, A, 0)
        assert 0 == partition.state.replay_count


class TestDue:
    def test_the_earliest_is_first_and_each_is_taken_once(self, partition):
        """A half that is twice in the heap for one time is taken once."""
        late = partition.half(1, A, due_ms=30.0)
        early = partition.half(2, B, due_ms=20.0)
        partition.state.schedule(early, 20.0)
        assert 20.0 == partition.state.next_due_ms()
        assert [early, late] == partition.state.take_due(30.0, 10)
        assert [] == partition.state.take_due(30.0, 10)
        assert partition.state.next_due_ms() is None

    def test_no_more_are_taken_than_asked_for(self, partition):
        """`take_due` returns no more halves than requested, and the others stay due."""
        for number in range(5):
            partition.half(number, bytes([number]) * 16, due_ms=1.0)
        assert 3 == len(partition.state.take_due(1.0, 3))
        assert 1.0 == partition.state.next_due_ms()

    def test_one_half_holds_up_no_other(self, partition):
        """A half rescheduled far away lets those after it through (R9)."""
        stuck = partition.half(1, A, due_ms=1.0)
        other = partition.half(2, B, due_ms=1.0)
        partition.state.schedule(stuck, 10_000.0)
        assert [other] == partition.state.take_due(5.0, 10)

    def test_the_oldest_open_ones_are_returned_with_their_distance(self, partition):
        """Each open half is returned with its distance, the number of half records after it."""
        for number, identity in enumerate((A, B, C), 1):
            partition.half(number, identity)
        partition.op(9, OpKind.COMMIT, B)
        found = [(after_count, each.transaction_id) for after_count, each in partition.state.oldest_open()]
        assert [(2, A), (0, C)] == found
        assert 3 == partition.state.replay_count
