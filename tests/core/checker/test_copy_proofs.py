"""A copy counts only if the op log has its proof; without it the half is what its other records say (R8)."""

from __future__ import annotations

import msgspec
import pytest
from txcore_conformance.owners import AnsweringFence, Owners, name_of

from txcore import wire
from txcore.checker.limits import Limits
from txcore.errors import BackendUnavailableError
from txcore.fence import FenceAnswer
from txcore.ids import TransactionId
from txcore.memory.reading import MemoryReader
from txcore.message import LocalTransactionState
from txcore.port import failed
from txcore.records import Checkpoint, Forced, LogKind, OpKind, ParkCode, Position, TargetMessage

TOKEN = b"an older claim.."
COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
OTHER = [TargetMessage("t", None, b"forged", {})]
FORGERIES = {
    "no messages": {"messages": []},
    "other messages": {"messages": OTHER},
    "rolled back": {"decided": OpKind.ROLLBACK},
    "rolled back without messages": {"decided": OpKind.ROLLBACK, "messages": []},
    "a later generation": {"generation": 9, "messages": []},
    "a later generation, rolled back": {"generation": 9, "decided": OpKind.ROLLBACK},
    "a journal that begins after every op": {"folded_to": 2**60, "messages": []},
    "checked often": {"count": 1_000_000},
    "born long ago": {"age_ms": 1, "messages": []},
}


def codes(world):
    """Return why each record of the parked log was parked."""
    return [code for _, code in world.parked()]


def forged(world, number, **fields):
    """Append a copy that names, as its proof, the proof of another copy; that one is about the half itself."""
    place = world.proven(msgspec.structs.replace(world.copies(number)[0], count=1)).proved_at
    return world.half(number, **({"folded_to": place, "token": TOKEN, "proved_at": place} | fields))


@pytest.mark.parametrize("fields", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("is_fenced", [True, False])
def test_forged_copy_of_a_pending_half_changes_nothing(fields, is_fenced):
    """What the copy says is not taken, be it read after the half by the same owner or by the next one."""
    for is_restarted in (False, True):
        listener = [UNKNOWN]
        fence = AnsweringFence(FenceAnswer.NO_ANSWER)
        world = Owners(listener=lambda _, said=listener: said[0], fence=fence, check_max=1_000)
        world.half(7, fenced=is_fenced, check_max=1_000)
        owner = world.start()
        world.run(3)
        forged(world, 7, **({"fenced": is_fenced, "check_max": 1_000} | fields))
        world.run(3)
        listener[0], fence.answer = COMMIT, FenceAnswer.COMMIT
        if is_restarted:
            world.restart(owner)
        world.run(60)
        assert ([b"b7"], []) == (world.delivered(), world.parked())


def assert_only_the_genuine_copy_counts(world, count):
    """Restart after the first record of half 7: its copy comes after *count* other halves, and alone is published."""
    for number in range(100, 100 + count):
        world.half(number, fenced=True)
        world.commit(number)
    world.copied(7, fenced=True, first_appended_ms=1, folded_to=1, token=TOKEN)
    bounds = world.log(LogKind.HALF)[1].position, world.log(LogKind.OP)[-1].position
    world.broker.checkpoints["g", 0] = Checkpoint(*bounds)
    world.start()
    world.run(60)
    assert (1, 0) == (world.delivered().count(b"b7"), world.delivered().count(b"forged"))
    assert ["COMMIT"] == world.kinds(7)


def test_forged_copy_that_is_read_before_the_genuine_one_changes_nothing():
    """After a restart only copies are left; a copy without a proof waits until all of them were read."""
    limits = Limits(read_count_max=1, checkpoint_interval_s=0.0)
    world = Owners(fence=AnsweringFence(FenceAnswer.COMMIT), limits=limits)
    world.half(7, fenced=True)
    forged(world, 7, generation=9, fenced=True, messages=OTHER, decided=OpKind.ROLLBACK)
    assert_only_the_genuine_copy_counts(world, 20)


@pytest.mark.parametrize("fields", FORGERIES.values(), ids=FORGERIES)
def test_genuine_copy_replaces_a_forged_one_that_was_taken_for_the_half(fields):
    """A frozen owner's copy may land late; whatever generation the forged one has, the proven one counts."""
    world = Owners(fence=AnsweringFence(FenceAnswer.NO_ANSWER))
    world.half(8)
    world.half(7, fenced=True, **({"folded_to": 0, "proved_at": 0} | fields))
    world.start()
    world.run(3)
    world.copied(7, fenced=True, first_appended_ms=1, folded_to=1, token=TOKEN)
    world.fence.answer = FenceAnswer.COMMIT
    world.run(60)
    assert [b"b7"] == world.delivered()


@pytest.mark.parametrize("decided", [OpKind.COMMIT, OpKind.ROLLBACK])
def test_only_record_of_a_half_without_a_fence_is_parked_if_it_is_an_unproven_copy(decided):
    """Nothing else can decide it as before, so the listener is not asked again: an operator decides."""
    world = Owners(listener=lambda _: COMMIT)
    world.half(7, decided=decided, folded_to=1, token=TOKEN)
    world.start()
    world.run(60)
    assert ([], [ParkCode.POISON], []) == (world.delivered(), codes(world), world.asked)


def test_first_half_that_says_it_is_decided_publishes_nothing():
    """A producer's half cannot be decided, so such a half is forged."""
    world = Owners(listener=lambda _: COMMIT)
    world.half(7, decided=OpKind.COMMIT)
    world.start()
    world.run(60)
    assert [] == world.delivered()


@pytest.mark.parametrize("answer", [FenceAnswer.COMMIT, FenceAnswer.ROLLBACK, FenceAnswer.NO_ANSWER])
@pytest.mark.parametrize("end", [OpKind.COMMIT, OpKind.ROLLBACK])
@pytest.mark.parametrize("is_trimmed", [False, True])
def test_unproven_copy_of_a_half_that_has_ended_is_closed_by_its_end(end, answer, is_trimmed, caplog):
    """The checkpoint has passed the half and its end. The copy is neither finished again, nor carried forward.

    That ops before the end are gone is no news: no checkpoint names them.
    """
    limits = Limits(replay_max=1, checkpoint_interval_s=0.0)
    world = Owners(fence=AnsweringFence(answer), listener=lambda _: COMMIT, limits=limits)
    world.op(OpKind.COMMIT, 6)
    world.half(7, fenced=True)
    ended_at = world.op(end, 7)
    if is_trimmed:
        world.trim(LogKind.OP, ended_at)
    world.half(8)
    bounds = world.log(LogKind.HALF)[-1].position, world.op(OpKind.COMMIT, 8)
    world.half(7, fenced=True, generation=5, messages=OTHER, folded_to=2**60)
    for number in range(100, 110):
        world.half(number)
    world.broker.checkpoints["g", 0] = Checkpoint(*bounds)
    world.start()
    world.run(60)
    assert ([end.name], 2, []) == (world.kinds(7), len(world.copies(7)), world.listed())
    assert b"forged" not in world.delivered()
    assert "log.truncated" not in caplog.text


@pytest.mark.parametrize(("answer", "kind"), [(FenceAnswer.COMMIT, "COMMIT"), (FenceAnswer.ROLLBACK, "ROLLBACK")])
@pytest.mark.parametrize("said", [OpKind.COMMIT, OpKind.ROLLBACK])
def test_fence_decides_the_only_record_of_a_half_if_it_is_an_unproven_copy(answer, kind, said):
    """The fence alone decides, whatever the copy says."""
    fence = AnsweringFence(answer)
    world = Owners(fence=fence)
    world.half(7, fenced=True, decided=said, folded_to=1, token=TOKEN)
    world.start()
    world.run(60)
    assert ([kind], {name_of(7)}) == (world.kinds(7), set(fence.asked))
    assert (kind == "COMMIT") == bool(world.delivered())


def test_parked_record_holds_nothing_that_an_unproven_copy_says_of_its_past():
    """Else a resume would repeat it under a proof."""
    world = Owners(fence=AnsweringFence(FenceAnswer.PRUNED))
    world.half(7, fenced=True, decided=OpKind.COMMIT, folded_to=1, token=TOKEN)
    world.start()
    world.run(60)
    (entry,) = [wire.decode_parked(record.body) for record in world.log(LogKind.PARKED)]
    assert (ParkCode.PRUNED, 0) == (entry.code, wire.decode_half(entry.half).decided)


@pytest.mark.parametrize("kind", [OpKind.COMMIT, OpKind.ROLLBACK])
def test_operator_ends_what_was_parked_without_a_proof(kind):
    """Neither resume nor request is refused for the copy's sake, whatever the copy says."""
    world = Owners(listener=lambda _: UNKNOWN)
    world.half(7, folded_to=1, token=TOKEN, decided=OpKind.ROLLBACK if kind is OpKind.COMMIT else OpKind.COMMIT)
    world.start()
    world.run(60)
    (entry,) = world.operator.parked()
    world.operator.resume(entry.transaction_id, "asked the customer")
    end = world.operator.commit if kind is OpKind.COMMIT else world.operator.rollback
    end(TransactionId(name_of(7)), "asked the customer")
    world.run(60)
    assert kind.name == world.kinds(7)[-1]
    assert (kind is OpKind.COMMIT) == bool(world.delivered())


@pytest.mark.parametrize("generation", [0, 1])
def test_forged_copy_does_not_undo_a_decision_in_the_log(generation):
    """The decision that the owner has read is carried out."""
    world = Owners(listener=lambda _: UNKNOWN)
    world.half(7)
    world.claim(TOKEN)
    place = world.op(OpKind.DECIDED, 7, token=TOKEN, decision=OpKind.COMMIT)
    forged(world, 7, generation=generation, decided=OpKind.ROLLBACK, folded_to=place)
    world.start()
    world.run(60)
    assert ([b"b7"], []) == (world.delivered(), world.listed())


@pytest.mark.parametrize("token", [TOKEN, b"a former claim.."], ids=["in force", "void"])
@pytest.mark.parametrize("is_looked_back_for", [True, False])
def test_decided_proves_no_copy(token, is_looked_back_for):
    """A DECIDED is no proof of a copy: it counts where an owner reads it in force, and only there."""
    world = Owners(listener=lambda _: UNKNOWN)
    world.half(8)
    world.claim(TOKEN)
    place = world.op(OpKind.DECIDED, 7, token=token, decision=OpKind.COMMIT)
    later = world.op(OpKind.NUDGE, 8)
    folded_to = place if is_looked_back_for else later
    world.half(7, folded_to=folded_to, token=TOKEN, decided=OpKind.COMMIT, proved_at=place)
    world.broker.checkpoints["g", 0] = Checkpoint(Position(0), Position(later), TOKEN)
    world.start()
    world.run(60)
    assert ([], [ParkCode.POISON]) == (world.delivered(), codes(world)[:1])


@pytest.mark.parametrize(
    "said", [{}, {"count": 2}, {"missing": []}, {"folded_to": 3}, {"by": "p:2"}, {"messages": OTHER}]
)
def test_proof_is_about_every_field(said):
    """A copy that differs from the proven one in a single field has no proof."""
    world = Owners(listener=lambda _: COMMIT)
    made = {"decided": OpKind.COMMIT, "folded_to": 1, "missing": [0], "token": TOKEN, "first_appended_ms": 1}
    world.half(8)
    world.claim(TOKEN)
    proven = world.proven(msgspec.structs.replace(world.copies(8)[0], transaction_id=name_of(7), **made))
    world.append_half(msgspec.structs.replace(proven, **said))
    world.start()
    world.run(60)
    assert (ParkCode.POISON in codes(world)) == bool(said)


def test_genuine_copy_is_finished_without_a_question():
    """A copy with its proof is believed, with the operator's part in its decision."""
    world = Owners(listener=lambda _: ROLLBACK)
    world.half(7)
    world.claim(TOKEN)
    later = world.op(OpKind.NUDGE, 8)
    made = {"folded_to": later, "token": TOKEN, "decided": OpKind.COMMIT, "forced": Forced.YES}
    world.copied(7, first_appended_ms=1, **made)
    world.start()
    world.run(60)
    assert ([b"b7"], []) == (world.delivered(), world.asked)
    assert Forced.YES == world.ops(7)[-1].forced


@pytest.mark.parametrize("is_fenced", [True, False])
def test_copy_whose_proof_retention_has_removed_loses_nothing(is_fenced):
    """Its fence is asked again. Without a fence nothing else can decide it as before: an operator does."""
    world = Owners(listener=lambda _: ROLLBACK, fence=AnsweringFence(FenceAnswer.COMMIT))
    world.half(8)
    world.claim(TOKEN)
    world.copied(7, first_appended_ms=1, folded_to=1, token=TOKEN, decided=OpKind.COMMIT, fenced=is_fenced)
    world.trim(LogKind.OP, world.op(OpKind.NUDGE, 8))
    world.start()
    world.run(60)
    assert [b"b7"] * is_fenced == world.delivered()
    assert (ParkCode.POISON in codes(world)) is not is_fenced


def test_copies_of_an_owner_have_proofs():
    """The next owner, which reads nothing but the copies, believes them and continues to count the checks."""
    limits = Limits(replay_max=1, checkpoint_interval_s=0.0)
    world = Owners(listener=lambda number: UNKNOWN if number == 7 else COMMIT, limits=limits, check_max=1_000)
    world.half(7, check_max=1_000)
    owner = world.start()
    for number in range(100, 110):
        world.half(number)
        world.run(1)
    carried = world.copies(7)[-1]
    assert carried.count
    following = world.restart(owner)
    assert ([], True) == (world.parked(), following.tenure.state.pending[name_of(7)].count > carried.count)
    assert all(copy.proved_at >= 0 for copy in world.copies(7)[1:])


def test_an_owner_fetches_no_proof_of_its_own(monkeypatch):
    """It has read the proof before it wrote the copy: many carried halves cost no second reading of the op log."""
    fetched = []
    fetch = MemoryReader.fetch
    monkeypatch.setattr(MemoryReader, "fetch", lambda self, places: fetched.append(self._key[1]) or fetch(self, places))
    limits = Limits(replay_max=1, checkpoint_interval_s=0.0)
    world = Owners(listener=lambda number: UNKNOWN if number == 7 else COMMIT, limits=limits, check_max=1_000)
    world.half(7, check_max=1_000)
    world.start()
    for number in range(100, 110):
        world.half(number)
        world.run(1)
    assert world.copies(7)[1:]
    assert LogKind.OP not in fetched


def test_resumed_copy_of_a_decided_half_is_finished_without_a_question():
    """An operator's copy repeats the decision in the log, under a proof of the operator's own."""
    world = Owners(listener=lambda _: ROLLBACK)
    world.half(7)
    world.claim(TOKEN)
    world.op(OpKind.DECIDED, 7, token=TOKEN, decision=OpKind.COMMIT, forced=Forced.YES)
    world.op(OpKind.DISCARD, 7, token=TOKEN, reason=ParkCode.UNDELIVERABLE)
    world.operator.resume(TransactionId(name_of(7)), "the topic is there")
    copy = world.copies(7)[-1]
    assert (OpKind.COMMIT, Forced.YES) == (copy.decided, copy.forced)
    world.start()
    world.run(60)
    assert ([b"b7"], []) == (world.delivered(), world.asked)


def test_first_of_two_plain_records_of_a_half_counts():
    """A broker may store a half twice; a second one with other messages is forged."""
    world = Owners(listener=lambda _: UNKNOWN, check_max=1_000)
    world.half(7, check_max=1_000)
    world.start()
    world.run(3)
    world.half(7, messages=OTHER)
    world.run(3)
    world.listener = lambda _: COMMIT
    world.run(60)
    assert [b"b7"] == world.delivered()


def test_proofs_that_cannot_be_read_are_asked_for_again(monkeypatch):
    """While the op log does not answer, no later half is judged, and nothing is parked."""
    fetch, broken = MemoryReader.fetch, [True]

    def fail(self, positions):
        if broken[0]:
            raise BackendUnavailableError("no leader")
        return fetch(self, positions)

    monkeypatch.setattr(MemoryReader, "fetch", fail)
    world = Owners(listener=lambda _: COMMIT)
    world.claim(TOKEN)
    world.copied(7, first_appended_ms=1, folded_to=1, token=TOKEN, decided=OpKind.COMMIT)
    world.start()
    world.run(10)
    assert ([], []) == (world.delivered(), world.parked())
    broken[0] = False
    world.run(60)
    assert ([b"b7"], []) == (world.delivered(), world.parked())


@pytest.mark.parametrize("fields", FORGERIES.values(), ids=FORGERIES)
def test_operator_does_not_see_a_forged_copy(fields):
    """What is parked stays on the list, and a resume sends its own messages: no forged copy gets a proof."""
    said = [UNKNOWN]
    world = Owners(listener=lambda _: said[0], check_max=1)
    world.half(7, check_max=1)
    world.start()
    assert world.run(60, world.parked)
    forged(world, 7, **fields)
    world.run(3)
    assert [7] == world.listed()
    said[0] = COMMIT
    world.operator.resume(TransactionId(name_of(7)), "the service is back")
    world.run(60)
    assert [b"b7"] == world.delivered()


def test_survey_keeps_what_it_read_until_the_proofs_are_there(monkeypatch):
    """An operator's look does not leave a half out because the op log did not answer for a moment."""
    world = Owners()
    world.half(8)
    world.claim(TOKEN)
    world.copied(7, first_appended_ms=1, folded_to=1, token=TOKEN)
    fetch, failures = MemoryReader.fetch, iter([BackendUnavailableError("no leader")])

    def fail_once(self, positions):
        for failure in failures:
            raise failure
        return fetch(self, positions)

    monkeypatch.setattr(MemoryReader, "fetch", fail_once)
    assert {name_of(7), name_of(8)} == {each.transaction_id for each in world.operator.pending()}


@pytest.mark.parametrize(
    "said", [{}, {"fenced": False, "check_max": 1}, {"immunity_ms": 3_600_000}, {"database": b"d" * 16}]
)
def test_plain_record_that_is_read_before_the_genuine_copy_changes_nothing(said):
    """After a restart the first record may be gone: nothing is judged before all that was stored was read."""
    limits = Limits(read_count_max=1, checkpoint_interval_s=0.0)
    world = Owners(fence=AnsweringFence(FenceAnswer.COMMIT), listener=lambda _: ROLLBACK, limits=limits)
    world.half(7, fenced=True)
    world.half(7, **({"fenced": True, "messages": OTHER} | said))
    assert_only_the_genuine_copy_counts(world, 40)


def test_half_log_that_does_not_say_where_it_ends_is_judged_all_the_same(monkeypatch):
    """A full log takes no marker of its end; its halves must be decided, or it stays full."""
    monkeypatch.setattr(MemoryReader, "end", lambda _: failed(BackendUnavailableError("it is full")))
    world = Owners(listener=lambda _: COMMIT)
    world.half(7)
    world.start()
    world.run(60)
    assert [b"b7"] == world.delivered()


def test_proofs_that_take_too_long_together_are_fetched_in_smaller_numbers(monkeypatch):
    """A broker has a time for each fetch; many proofs far apart must not stop the reading for good."""
    fetch, asked = MemoryReader.fetch, []

    def slow(self, positions):
        asked.append(len(positions))
        return fetch(self, positions) if len(positions) < 4 else failed(BackendUnavailableError("too late"))

    world = Owners(listener=lambda _: COMMIT)
    world.claim(TOKEN)
    for number in range(300, 400):
        world.copied(number, first_appended_ms=1, folded_to=1, token=TOKEN, decided=OpKind.COMMIT)
    monkeypatch.setattr(MemoryReader, "fetch", slow)
    world.limits.fence_batch_count_max = 1
    world.start()
    world.run(200)
    assert (100, []) == (len(world.delivered()), world.parked())
    assert max(asked) == 100


@pytest.mark.parametrize("is_gone", [False, True])
def test_resume_sends_what_was_parked_and_not_what_the_log_says_by_now(is_gone):
    """Records of the parked half may be gone from the half log, or come after a forged one with its id."""
    said = [UNKNOWN]
    world = Owners(listener=lambda _: said[0], check_max=1)
    world.half(7, check_max=1)
    world.start()
    assert world.run(60, world.parked)
    world.run(10)
    world.half(7, messages=OTHER)
    if is_gone:
        world.trim(LogKind.HALF, world.log(LogKind.HALF)[1].position)
    said[0] = COMMIT
    world.operator.resume(TransactionId(name_of(7)), "the service is back")
    world.run(60)
    assert [b"b7"] == world.delivered()


@pytest.mark.parametrize("is_resumed", ["the forged one", "the half"])
def test_forged_copy_of_a_half_that_was_parked_long_ago_does_not_replace_it(is_resumed):
    """The next owner knows nothing of the half any more: the copy is parked beside it, under a name of its own."""
    said = [UNKNOWN]
    world = Owners(listener=lambda _: said[0], check_max=1)
    world.half(7, check_max=1)
    owner = world.start()
    assert world.run(60, world.parked)
    world.run(10)
    world.half(8)
    world.half(7, generation=9, messages=OTHER, decided=OpKind.COMMIT, folded_to=1)
    world.broker.checkpoints["g", 0] = Checkpoint(
        world.log(LogKind.HALF)[1].position, world.log(LogKind.OP)[-1].position, owner.tenure.token
    )
    world.restart(owner)
    found = {each.code == ParkCode.POISON: each.transaction_id for each in reversed(world.operator.parked())}
    said[0] = COMMIT
    world.operator.resume(found[is_resumed == "the forged one"], "the service is back")
    world.run(60)
    assert (1, 0) == (world.delivered().count(b"b7"), world.delivered().count(b"forged"))
