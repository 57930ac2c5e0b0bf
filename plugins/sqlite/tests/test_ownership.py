"""Partitions are shared among members: evenly, stably, each to one living member at a time."""

from __future__ import annotations

import random
import sqlite3

import pytest
from txcore_conformance.member import Member, shared_out
from txcore_sqlite.ownership import _free, _leave, take_step

from txcore.errors import BusyError, ClosedError, ConfigError
from txcore.records import Checkpoint, ClaimEvent, ClaimEventKind, Position

ASSIGNED, REVOKING, LOST = ClaimEventKind.ASSIGNED, ClaimEventKind.REVOKING, ClaimEventKind.LOST
LEASE_MS = 5_000


def join(backend, name):
    return Member(backend.claim("orders", name))


def test_a_lone_member_gets_everything_at_once(kit, backend):
    """The first member owns every partition."""
    member = join(backend, "checker")
    kit.until(lambda: shared_out(member) == [4])


def test_members_share_evenly_and_never_one_partition(kit, opened):
    """Joining members get their share after it is given up; leaving members free their partitions at once."""
    first, second, third = (join(opened(lease_s=1.0), name) for name in "abc")
    kit.until(lambda: shared_out(first, second, third) == [1, 1, 2])
    second.claim.close(1.0).result(10)
    kit.until(lambda: shared_out(first, third) == [2, 2])
    first.claim.close(1.0).result(10)
    kit.until(lambda: shared_out(third) == [4])
    assert first.lost + second.lost + third.lost == 0


def test_a_partition_is_handed_over_only_when_it_was_given_up(kit, opened):
    """The new owner gets no partition while the old owner drains."""
    first = join(opened(lease_s=60), "a")
    kit.until(lambda: shared_out(first) == [4])
    second = join(opened(lease_s=60), "b")
    kit.until(lambda: beaten(first) and first.poll(obeys=False) and len(first.revoking) == 2)
    for _ in range(3):
        kit.until(lambda: beaten(second))
        assert set() == second.poll()
    for partition in first.revoking:
        first.held.remove(partition)
        first.claim.give_up(partition)
    kit.until(lambda: beaten(second) and len(second.poll()) == 2)
    assert len(first.held) == 2
    assert not first.held & second.held


def test_a_member_that_does_not_drain_in_time_loses_the_partition(kit, opened, clock):
    """A member that ignores REVOKING for its drain time gets LOST, and another member gets the partition."""
    first = join(opened(clock=clock, lease_s=60), "a")
    kit.until(lambda: shared_out(first) == [4])
    second = join(opened(clock=clock, lease_s=60), "b")
    kit.until(lambda: beaten(first) and first.poll(obeys=False) and len(first.revoking) == 2)
    for _ in range(4):
        assert len(first.poll(obeys=False)) == 4
        clock.now_ms += 15_000
        kit.until(lambda: beaten(first) and beaten(second))
    kit.until(lambda: beaten(second) and len(second.poll()) == 2)
    assert len(first.poll(obeys=False)) == 2 == first.lost


def beaten(member):
    """Start another heartbeat of the member and return whether it was stored."""
    member.claim.beat()
    return member.claim._step.exception(20) is None


def test_giving_up_unasked_is_answered_by_a_new_assignment(kit, backend):
    """A member that gives up by itself competes again, and gets the partition back when no other member wants it."""
    member = join(backend, "a")
    kit.until(lambda: shared_out(member) == [4])
    member.held.remove(2)
    member.claim.give_up(2)
    kit.until(lambda: shared_out(member) == [4])


def test_giving_up_an_assignment_that_is_over_leaves_the_next_one_alone(kit, backend):
    """A give_up refers to the last ASSIGNED that was polled; a later one that was not polled yet is kept."""
    claim = join(backend, "a").claim
    kit.until(lambda: len(claim._holdings.held) == 4)
    claim.give_up(0)
    assert 0 in claim._holdings.held, "not polled yet"
    assert sorted(event.partition for event in claim.poll()) == [0, 1, 2, 3]
    claim._holdings.lose([0])
    claim._holdings.assign(0)
    claim.give_up(0)
    assert [event.kind for event in claim.poll() if event.partition == 0] == [LOST, ASSIGNED]
    claim.give_up(0)
    kit.until(lambda: [event.kind for event in claim.poll() if event.partition == 0] == [ASSIGNED])
    claim.close(5.0).result(5.0)


def test_a_member_without_heartbeat_says_lost_itself(kit, opened, clock):
    """A member whose heartbeat cannot be stored for lease_s reports LOST for all; later it is assigned anew."""
    member = join(opened(clock=clock, lease_s=2.0, busy_timeout_s=0.1), "a")
    kit.until(lambda: shared_out(member) == [4])
    with kit.lock():
        clock.now_ms += 2_000
        assert set() == member.poll()
        assert member.lost == 4
    kit.until(lambda: shared_out(member) == [4])


def test_a_killed_process_is_replaced(kit, opened):
    """The partitions of a process killed with -9 go to another one after its lease expired."""
    child = kit.child("hold", kit.path, "killed")
    assert child.stdout.readline() == "held\n"
    member = join(opened(lease_s=0.5), "heir")
    assert set() == member.poll()
    child.kill()
    child.wait(20)
    kit.until(lambda: shared_out(member) == [4])


def test_members_of_one_name_are_two(kit, opened):
    """Two members that join under the same name share the partitions like any two members."""
    first, second = (join(opened(lease_s=1.0), "same") for _ in range(2))
    kit.until(lambda: shared_out(first, second) == [2, 2])


def test_closing_the_backend_leaves_the_group(kit, opened):
    """After a backend closes, other processes take over at once, before the lease expires."""
    backend = opened(lease_s=600)
    first = join(backend, "a")
    kit.until(lambda: shared_out(first) == [4])
    backend.close().result(10)
    second = join(opened(lease_s=600), "b")
    kit.until(lambda: shared_out(second) == [4])


def test_a_closed_claim_refuses_calls(backend):
    """A closed claim refuses every call except close, and give_up, which has nothing to give up."""
    claim = backend.claim("orders", "a")
    assert claim.close(1.0) is claim.close(1.0)
    claim.close(1.0).result(10)
    claim.give_up(0)
    for call in (claim.poll, lambda: claim.checkpoint(0, Checkpoint(None, None))):
        with pytest.raises(ClosedError):
            call()


def test_checkpoints_are_kept_whole(opened):
    """A checkpoint is read back as it was stored, also by another process, and replaces the one before."""
    backend, other = opened(), opened()
    claim = backend.claim("orders", "a")
    assert backend.load_checkpoint("orders", 1).result(5) is None
    for checkpoint in (Checkpoint(Position(7), Position(9), b"token", b"\x00note"), Checkpoint(None, None)):
        claim.checkpoint(1, checkpoint).result(5)
        assert checkpoint == other.load_checkpoint("orders", 1).result(5)
    assert backend.load_checkpoint("orders", 0).result(5) is None
    with pytest.raises(ConfigError):
        claim.checkpoint(9, Checkpoint(None, None)).result(5)


def test_a_checkpoint_that_cannot_be_stored_says_so(kit, opened):
    """The Future of a checkpoint fails with BusyError if the file's lock is not free in time."""
    claim = opened(busy_timeout_s=0.1).claim("orders", "a")
    with kit.lock(), pytest.raises(BusyError):
        claim.checkpoint(1, Checkpoint(None, None)).result(5)


def test_a_clock_that_was_set_back_keeps_no_member_alive(kit, backend):
    """A dead member's heartbeat from the future does not keep its partitions until that time."""
    with kit.lock() as connection:
        take_step(connection, "orders", "dead", 1_000_000, LEASE_MS)
        assert len(take_step(connection, "orders", "heir", 500_000, LEASE_MS).leases) == 4


@pytest.mark.parametrize("seed", range(20))
def test_any_history_of_members_ends_even_and_never_overlaps(kit, backend, seed):
    """In any order of joins, drains, leaves and deaths no two living members hold one partition; shares end even."""
    chance = random.Random(seed)
    backend.ensure_group("many", 7).result(5)
    now_ms, alive, names = 10_000, {}, iter(range(1_000))
    with kit.lock() as connection:

        def step(name):
            holding = take_step(connection, "many", name, now_ms, LEASE_MS)
            alive[name] = (now_ms, holding.leases)
            for partition, revoke_ms in list(holding.leases.items()):
                if revoke_ms is not None and chance.random() < 0.5:
                    _free(connection, "many", name, partition)
                    alive[name][1].pop(partition)
            held = [
                partition
                for beat_ms, leases in alive.values()
                for partition, revoke_ms in leases.items()
                if abs(now_ms - beat_ms) < LEASE_MS and (revoke_ms is None or now_ms < revoke_ms)
            ]
            assert len(held) == len(set(held))

        for _ in range(300):
            now_ms += chance.randrange(1_500)
            action = chance.random()
            if not alive or (action < 0.1 and len(alive) < 9):
                step(str(next(names)))
            elif action < 0.15:
                alive.pop(chance.choice(list(alive)))  # dies
            elif action < 0.2:
                name = chance.choice(list(alive))
                _leave(connection, "many", name)
                alive.pop(name)
            else:
                step(chance.choice(list(alive)))
        now_ms += LEASE_MS
        for _ in range(5):
            now_ms += LEASE_MS // 2
            for name in list(alive):
                step(name)
        counts = [len(leases) for _, leases in alive.values()]
        if counts:
            assert sum(counts) == 7
            assert max(counts) - min(counts) <= 1
        before = {name: sorted(leases) for name, (_, leases) in alive.items()}
        for name in list(alive):
            step(name)
        assert before == {name: sorted(leases) for name, (_, leases) in alive.items()}, "partitions move for nothing"


def test_events_compare_by_value():
    """Tests may compare events."""
    assert ClaimEvent(LOST, 1) == ClaimEvent(LOST, 1)
    assert sqlite3.threadsafety == 3
