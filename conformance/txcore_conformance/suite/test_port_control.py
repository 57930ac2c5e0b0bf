"""The control path of the port: groups, checkpoints, membership, closing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txcore.errors import ClosedError, ConfigError
from txcore.port import Claim
from txcore.records import Checkpoint, ClaimEventKind, LogKind, Op, OpKind, Position, Status
from txcore_conformance import raw
from txcore_conformance.kit import PARTITION_COUNT, Kit, Recorder, error_of

ALL = set(range(PARTITION_COUNT))


@pytest.fixture(autouse=True)
def _no_logs(kit: Kit, request: pytest.FixtureRequest) -> None:
    """Keep the oracle from logs that a test without a topic does not write: its author's backend may have none yet."""
    if "topic" not in request.fixturenames:
        kit.history.unjudged = "no transaction was made"


class Member:
    """A claim that holds every assigned partition and gives up every revoked one."""

    def __init__(self, kit: Kit, name: str) -> None:
        self.backend = kit.open()
        self.claim: Claim = self.backend.claim(kit.group, name)
        self.held: set[int] = set()
        self.heard: list[tuple[ClaimEventKind, int]] = []

    def poll(self) -> set[int]:
        """Apply the claim's events and return the partitions held now."""
        for event in self.claim.poll():
            self.heard.append((event.kind, event.partition))
            if event.kind is ClaimEventKind.ASSIGNED:
                self.held.add(event.partition)
            elif event.kind is ClaimEventKind.REVOKING:
                self.held.discard(event.partition)
                self.claim.give_up(event.partition)
            else:
                self.held.discard(event.partition)
        return self.held


def test_a_group_is_created_once_and_found_by_others(kit: Kit) -> None:
    """Every connection gets the same number of partitions, also if another one made the group."""
    other = kit.open()
    assert PARTITION_COUNT == kit.wait(kit.backend.ensure_group(kit.group, PARTITION_COUNT))
    assert PARTITION_COUNT == kit.wait(other.ensure_group(kit.group))
    assert kit.wait(other.ensure_group(f"{kit.group}-default")) >= 1


def test_settings_that_differ_from_the_groups_are_named(kit: Kit) -> None:
    """Opening a group with another number of partitions is a ConfigError that names both numbers."""
    error = error_of(lambda: kit.backend.ensure_group(kit.group, PARTITION_COUNT + 3), kit.timeout_s)
    assert isinstance(error, ConfigError)
    assert str(PARTITION_COUNT) in str(error)
    assert str(PARTITION_COUNT + 3) in str(error)
    assert "partition" in error.key
    assert PARTITION_COUNT == kit.wait(kit.backend.ensure_group(kit.group))


@pytest.mark.parametrize(
    "call",
    [
        lambda kit: kit.backend.load_checkpoint("never-created", 0),
        lambda kit: kit.backend.read("never-created", LogKind.HALF, 0).read(1),
        lambda kit: kit.backend.claim("never-created", "me").checkpoint(0, Checkpoint(Position(1), Position(1))),
    ],
    ids=["load_checkpoint", "read", "checkpoint"],
)
def test_an_unknown_group_is_a_config_error(kit: Kit, call: Callable[[Kit], Any]) -> None:
    """Control calls and readers raise ConfigError for a missing group."""
    assert isinstance(error_of(lambda: call(kit), kit.timeout_s), ConfigError)


def test_records_of_an_unknown_group_are_refused(kit: Kit, topic: str) -> None:
    """Halves and releases for a missing group are REFUSED; a mark is REFUSED or raises ConfigError."""
    half = raw.half(kit, topic)
    half.group = "never-created"
    assert [Status.REFUSED] == [outcome.status for outcome in raw.append(kit, half)]
    assert [Status.REFUSED] == [outcome.status for outcome in raw.release(kit, raw.rollback(half))]
    assert [Status.REFUSED] == [outcome.status for outcome in raw.release(kit, raw.commit(half))]
    assert [] == kit.bodies(topic)
    tick = Op(OpKind.TICK, b"n" * 16)
    try:
        outcome = kit.wait(kit.backend.mark("never-created", 0, tick))
    except ConfigError:
        return
    assert Status.REFUSED is outcome.status


def test_a_checkpoint_comes_back_as_it_was_stored(kit: Kit) -> None:
    """All four fields survive, None and empty ones too; the newest of a partition holds, partitions do not mix."""
    claim = kit.backend.claim(kit.group, "me")
    other = kit.open()
    assert kit.wait(other.load_checkpoint(kit.group, 0)) is None
    kit.history.unjudged = "its checkpoints are made up"
    note = bytes(range(256)) * 4
    for checkpoint in (
        Checkpoint(Position(7), None),
        Checkpoint(Position(7), Position(9), b"t" * 16, note),
        Checkpoint(Position(1), Position(2), b"", b""),
        Checkpoint(Position(2**40), Position(2**41), b"\0" * 16, b"\xff" * kit.promises.note_size_max),
    ):
        kit.wait(claim.checkpoint(0, checkpoint))
        assert checkpoint == kit.wait(other.load_checkpoint(kit.group, 0))
    assert kit.wait(other.load_checkpoint(kit.group, 1)) is None
    kit.wait(claim.close(kit.timeout_s))


def test_a_lone_member_is_assigned_every_partition(kit: Kit) -> None:
    """A lone member is assigned each partition once, and its next poll returns no event."""
    member = Member(kit, "alone")
    kit.until(lambda: member.poll() == ALL, "every partition")
    assert sorted((ClaimEventKind.ASSIGNED, partition) for partition in ALL) == sorted(
        member.heard, key=lambda heard: heard[1]
    )
    assert [] == list(member.claim.poll())
    kit.wait(member.claim.close(kit.timeout_s))


def test_members_share_the_partitions_and_never_hold_one_together(kit: Kit) -> None:
    """A second member gets its share only after the first one gave it up."""
    first = Member(kit, "first")
    kit.until(lambda: first.poll() == ALL, "every partition")
    second = Member(kit, "second")

    def is_shared() -> bool:
        first.poll()
        second.poll()
        assert not first.held & second.held
        return bool(first.held and second.held and first.held | second.held == ALL)

    kit.until(is_shared, "a share for each")
    for member in (first, second):
        kit.wait(member.claim.close(kit.timeout_s))


def test_a_member_that_leaves_hands_over_at_once(kit: Kit) -> None:
    """After `close` the remaining members get the partitions, and closing again changes nothing."""
    first, second = Member(kit, "first"), Member(kit, "second")
    kit.until(lambda: first.poll() | second.poll() == ALL, "every partition")
    kit.wait(first.claim.close(kit.timeout_s))
    kit.wait(first.claim.close(kit.timeout_s))
    kit.until(lambda: second.poll() == ALL, "the other's partitions")
    kit.wait(second.claim.close(kit.timeout_s))


def test_a_partition_given_up_is_assigned_again(kit: Kit) -> None:
    """A member that gives up by itself competes again and gets ASSIGNED again."""
    member = Member(kit, "alone")
    kit.until(lambda: member.poll() == ALL, "every partition")
    member.claim.give_up(0)
    member.held.discard(0)
    kit.until(lambda: 0 in member.poll(), "the partition again")
    assert 2 == member.heard.count((ClaimEventKind.ASSIGNED, 0))
    kit.wait(member.claim.close(kit.timeout_s))


@pytest.mark.requires("atomic_release")
def test_an_older_claim_of_the_same_member_is_fenced(kit: Kit, topic: str) -> None:
    """A release that waits while its member claims the partition anew has no effect: the new owner has read the log."""
    half = raw.half(kit, topic)
    raw.append(kit, half)
    member = Member(kit, "alone")
    kit.until(lambda: half.partition in member.poll(), "the half's partition")
    backend = member.backend
    for token in (b"1" * 16, b"2" * 16):
        _, outcome = raw.mark(kit, OpKind.CLAIM, token, claim=member.claim, backend=backend)
        assert Status.DURABLE is outcome.status
    (older,) = raw.release(kit, raw.commit(half, b"1" * 16), claim=member.claim, backend=backend)
    assert (Status.FENCED, []) == (older.status, kit.bodies(topic))
    (newer,) = raw.release(kit, raw.commit(half, b"2" * 16), claim=member.claim, backend=backend)
    assert (Status.DURABLE, [b"payload"]) == (newer.status, kit.bodies(topic))
    kit.wait(member.claim.close(kit.timeout_s))


def test_a_member_whose_loop_is_stuck_loses_its_partitions(kit: Kit) -> None:
    """A connected member that stops polling keeps nothing, and gets a share again when it polls."""
    if kit.harness.silent_member_max_s is None:
        pytest.skip("a member of this backend that does not poll keeps its partitions")
    stuck, other = Member(kit, "stuck"), Member(kit, "other")
    kit.until(lambda: stuck.poll() | other.poll() == ALL and stuck.held and other.held, "a share for each")
    kit.until(lambda: other.poll() == ALL, "what the stuck member had")
    (lost,) = stuck.held
    assert lost not in stuck.poll()
    assert stuck.heard.count((ClaimEventKind.LOST, lost)) == 1
    kit.until(lambda: stuck.poll() | other.poll() == ALL and stuck.held and other.held, "a share for each again")
    assert not stuck.held & other.held
    for member in (stuck, other):
        kit.wait(member.claim.close(kit.timeout_s))


def test_giving_up_a_partition_of_another_member_changes_nothing(kit: Kit) -> None:
    """A member that never had the partition, or gave it up before, does not affect its owner."""
    first, second = Member(kit, "first"), Member(kit, "second")
    kit.until(lambda: first.poll() | second.poll() == ALL and first.held and second.held, "a share for each")
    (kept,) = first.held
    for _ in range(3):
        second.claim.give_up(kept)
    assert kept in first.poll()
    kit.wait(second.claim.close(kit.timeout_s))
    kit.until(lambda: first.poll() == ALL, "the other's partitions")
    kit.wait(first.claim.close(kit.timeout_s))


def test_giving_up_an_ended_assignment_does_not_end_the_next_one(kit: Kit) -> None:
    """`give_up` refers to the last ASSIGNED that `poll` returned, not to a later one that was not polled yet."""
    member = Member(kit, "alone")
    kit.until(lambda: member.poll() == ALL, "every partition")
    if not kit.harness.expire_member(kit.group, "alone"):
        pytest.skip("no member of this backend can be expired")
    lost, assigned = (ClaimEventKind.LOST, 0), (ClaimEventKind.ASSIGNED, 0)

    def has_lost() -> bool:
        member.poll()
        return lost in member.heard

    kit.until(has_lost, "the loss")
    if 0 not in member.held:
        member.claim.give_up(0)
        member.claim.give_up(0)
    kit.until(lambda: member.poll() == ALL, "every partition again")
    assert member.heard.count(lost) + 1 == member.heard.count(assigned)
    kit.wait(member.claim.close(kit.timeout_s))


def test_an_assignment_lost_before_it_was_polled_leaves_no_event(kit: Kit) -> None:
    """A member hears nothing of an assignment that came and went between two polls."""
    member = Member(kit, "alone")
    if not kit.harness.expire_member(kit.group, "alone"):
        pytest.skip("no member of this backend can be expired")
    kit.until(lambda: member.poll() == ALL, "every partition")
    assert (ClaimEventKind.LOST, 0) not in member.heard
    kit.wait(member.claim.close(kit.timeout_s))


def test_an_assignment_revoked_before_it_was_polled_leaves_no_event(kit: Kit) -> None:
    """Partitions that are offered to a member that does not poll can go to others, and cause no event with it."""
    idle = Member(kit, "idle")
    for name in ("second", "third"):
        other = Member(kit, name)
        kit.until(other.poll, "a share")
        if name == "second":
            kit.wait(other.claim.close(kit.timeout_s))
    events = idle.claim.poll()
    assert {event.kind for event in events} <= {ClaimEventKind.ASSIGNED}
    assert len(events) == len({event.partition for event in events})
    idle.held.update(event.partition for event in events)
    kit.until(lambda: idle.poll() | other.poll() == ALL and idle.held and other.held, "a share for each")
    for member in (idle, other):
        kit.wait(member.claim.close(kit.timeout_s))


def test_a_closed_claim_is_not_polled_and_gives_nothing_up(kit: Kit) -> None:
    """After `close`, `poll` raises ClosedError; `give_up` does nothing, as every assignment is over."""
    member, heir = Member(kit, "closed"), Member(kit, "heir")
    kit.until(lambda: member.poll() | heir.poll() == ALL and member.held, "every partition")
    kit.wait(member.claim.close(kit.timeout_s))
    with pytest.raises(ClosedError):
        member.claim.poll()
    kit.until(lambda: heir.poll() == ALL, "the other's partitions")
    heard = len(heir.heard)
    for partition in ALL:
        member.claim.give_up(partition)
    heir.poll()
    assert heard == len(heir.heard)
    kit.wait(heir.claim.close(kit.timeout_s))


def test_two_members_of_one_name_are_two_members(kit: Kit) -> None:
    """A restarted process with its old name does not keep the old process's partitions for ever."""
    old = Member(kit, "same")
    kit.until(lambda: old.poll() == ALL, "every partition")
    new = Member(kit, "same")
    kit.wait(old.claim.close(kit.timeout_s))
    kit.until(lambda: new.poll() == ALL, "every partition")
    kit.wait(new.claim.close(kit.timeout_s))


def test_close_settles_every_item_handed_over(kit: Kit, topic: str) -> None:
    """Every item is settled before `close` is done; other connections read the DURABLE items."""
    backend = kit.open()
    halves = [raw.half(kit, topic, body=b"%d" % number) for number in range(200)]
    appended = Recorder(halves)
    backend.append_halves(appended)
    appended.wait(backend, kit.timeout_s)
    released = Recorder([raw.commit(half, flush=False) for half in halves])
    backend.release(released)
    kit.wait(backend.close(kit.timeout_s))
    unsettled = [index for index, outcome in enumerate(released.outcomes) if outcome is None]
    assert [] == unsettled
    ended = {each.transaction_id for each in raw.ops(kit) if each.kind is OpKind.COMMIT or each.kind == OpKind.COMMIT}
    for half, outcome in zip(halves, released.outcomes, strict=True):
        if outcome is not None and outcome.status is Status.DURABLE:
            assert half.transaction_id in ended
            assert half.messages[0].body in kit.bodies(topic)


@pytest.mark.parametrize(
    "call",
    [
        lambda kit, backend: backend.ensure_group(kit.group),
        lambda kit, backend: backend.append_halves(Recorder([raw.half(kit, "any")])),
        lambda kit, backend: backend.release(Recorder([raw.rollback(raw.half(kit, "any"))])),
        lambda kit, backend: backend.mark(kit.group, 0, Op(OpKind.TICK, b"n" * 16)),
        lambda kit, backend: backend.read(kit.group, LogKind.HALF, 0).read(1),
        lambda kit, backend: backend.claim(kit.group, "late"),
        lambda kit, backend: backend.load_checkpoint(kit.group, 0),
        lambda kit, backend: backend.ping(kit.group),
    ],
    ids=["ensure_group", "append_halves", "release", "mark", "read", "claim", "load_checkpoint", "ping"],
)
def test_a_closed_backend_refuses_every_call(kit: Kit, call: Callable[..., Any]) -> None:
    """After `close` each call raises ClosedError, at once or through its Future; closing again is allowed."""
    backend = kit.open()
    kit.wait(backend.close(kit.timeout_s))
    assert isinstance(error_of(lambda: call(kit, backend), kit.timeout_s), ClosedError)
    kit.wait(backend.close(kit.timeout_s))


def test_closing_one_connection_does_not_affect_the_others(kit: Kit, topic: str) -> None:
    """A connection continues to work after another connection of its process is closed."""
    other = kit.open()
    kit.wait(other.close(kit.timeout_s))
    assert [Status.DURABLE] == [outcome.status for outcome in raw.append(kit, raw.half(kit, topic))]


def test_ping_answers_for_a_group_that_exists_and_creates_none(kit: Kit) -> None:
    """Questions under way together are all answered; a group that was not made is a ConfigError, each time."""
    for answer in [kit.backend.ping(kit.group) for _ in range(5)]:
        kit.wait(answer)
    for _ in range(2):
        assert isinstance(error_of(lambda: kit.backend.ping(f"{kit.group}-none"), kit.timeout_s), ConfigError)


def test_control_futures_cannot_be_cancelled_under_the_backend(kit: Kit) -> None:
    """A control call's Future is marked running, so a waiter that gives up does not break the backend's thread."""
    for _ in range(20):
        assert not kit.backend.ensure_group(kit.group).cancel()
        assert not kit.backend.load_checkpoint(kit.group, 0).cancel()
        assert not kit.backend.ping(kit.group).cancel()
    assert PARTITION_COUNT == kit.wait(kit.backend.ensure_group(kit.group))
