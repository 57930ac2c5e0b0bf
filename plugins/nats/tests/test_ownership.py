"""Partitions are shared among members: evenly, each to one living member, and taken over in time."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
from txcore_conformance.member import Member, shared_out
from txcore_nats.membership import Lease, Membership
from txcore_nats.options import GroupNames, Options

from txcore.backends.holdings import Holdings
from txcore.errors import ConfigError
from txcore.records import ClaimEventKind, Status

ASSIGNED, LOST = ClaimEventKind.ASSIGNED, ClaimEventKind.LOST
TAKEOVER_MAX_S = 15.0


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now_s = 100.0

    def elapsed_s(self):
        return self.now_s


@pytest.fixture
def members(kit):
    """Members of one group of eight partitions, each on a connection of its own."""
    made = []

    def join(*names, **options):
        new = [Member(kit.connect(partition_count=8, **options).claim(kit.group, name)) for name in names]
        made.extend(new)
        return new

    yield join
    for member in made:
        member.claim.close(2.0).result(10)


def test_members_share_evenly_and_never_one_partition(kit, members):
    """Joining members get their share after it is given up; leaving members free their partitions at once."""
    first, second, third = members("a", "b", "c")
    kit.until(lambda: shared_out(first, second, third) == [2, 3, 3])
    second.claim.close(2.0).result(10)
    kit.until(lambda: shared_out(first, third) == [4, 4])
    third.claim.close(2.0).result(10)
    kit.until(lambda: shared_out(first) == [8])


def test_a_member_that_does_not_drain_in_time_loses(kit, members):
    """A member that ignores REVOKING for its drain time gets LOST, and another member gets the partition."""
    (first,) = members("a")
    kit.until(lambda: shared_out(first) == [8])
    (second,) = members("b")
    kit.until(lambda: first.poll(obeys=False) and len(first.revoking) == 4, "the question")
    kit.until(lambda: first.poll(obeys=False) and second.poll() and len(second.held) == 4, "the others' share")
    assert first.lost == 4
    assert not first.held & second.held


def test_a_partition_given_up_goes_to_a_member_with_fewer(kit, members):
    """After a member gives up a partition, the members share evenly again."""
    first, second = members("a", "b")
    kit.until(lambda: shared_out(first, second) == [4, 4])
    partition = min(first.held)
    first.held.discard(partition)
    first.claim.give_up(partition)
    kit.until(lambda: shared_out(first, second) == [4, 4])


def test_a_key_that_names_a_member_in_vain_is_freed(kit, members):
    """A member gets LOST when another client frees its partitions, and it takes free partitions again."""
    (first,) = members("a")
    kit.until(lambda: shared_out(first) == [8])
    assert kit.harness.expire_member(kit.group, "a")
    kit.until(lambda: first.poll() is not None and first.lost == 8, "the loss")
    kit.until(lambda: shared_out(first) == [8])


def test_a_claim_on_a_group_that_does_not_exist_says_so(kit):
    """`poll` raises ConfigError until a client creates the group."""
    backend = kit.connect(partition_count=0)
    claim = backend.claim("never-made-" + kit.group, "a")

    def polled():
        try:
            return [event.kind for event in claim.poll()]
        except ConfigError as error:
            return [error.key]

    kit.until(lambda: polled() == ["group"], "the error")
    kit.wait(kit.backend.ensure_group("never-made-" + kit.group, 1))
    kit.until(lambda: polled() == [ASSIGNED], "the partition")
    claim.close(1.0).result(5)


def test_keys_of_members_long_gone_are_removed(kit, members):
    """The key of a member that is gone for long is removed from the bucket."""
    ghost = f"$KV.txc_{kit.group}.own.member.0123456789abcdef"
    (first,) = members("a", lease_s=0.5)
    kit.publish(ghost, b'{"name":"ghost"}')
    subjects = {"subjects_filter": f"$KV.txc_{kit.group}.own.member.>"}
    stream = f"KV_txc_{kit.group}"
    kit.until(lambda: first.poll() and ghost not in kit.api(f"STREAM.INFO.{stream}", **subjects)["state"]["subjects"])
    assert first.held


@pytest.mark.parametrize(
    ("fault", "is_frozen"), [(signal.SIGKILL, False), (signal.SIGSTOP, True)], ids=["kill", "freeze"]
)
def test_a_dead_or_frozen_members_partitions_are_taken_over_in_time(kit, fault, is_frozen):
    """With the default lease of 5 s, partitions of a dead member are taken over within 15 s; a thawed one gets LOST."""
    url = kit.address(lease_s=5)
    assert kit.backend
    backend = kit.harness.open(url)
    kit.opened.append(backend)
    first = Member(backend.claim(kit.group, "survivor"))
    process = kit.child("hold", url, kit.group, "victim")
    kit.until(lambda: len(first.poll()) == 1, "a share for each")
    assert "assigned" in process.stdout.readline()
    process.send_signal(fault)
    lasts_s, _ = kit.lasts_s(lambda: kit.until(lambda: len(first.poll()) == 2, "the takeover"))
    assert lasts_s < TAKEOVER_MAX_S
    if is_frozen:
        process.send_signal(signal.SIGCONT)
        heard = [process.stdout.readline().split()[0] for _ in range(2)]
        assert "lost" in heard
    first.claim.close(1.0).result(5)


def lonely(clock, sent):
    """A member without a broker: what it would send is appended to *sent*."""
    shared = SimpleNamespace(
        clock=clock,
        options=SimpleNamespace(lease_s=5.0),
        publisher=SimpleNamespace(send=sent.append),
        loop=SimpleNamespace(loop=SimpleNamespace(call_soon=lambda _call: None)),
    )
    holdings = Holdings(clock.elapsed_s)
    member = Membership(shared, holdings, "orders", "checker", "me")
    member._names, member._count = GroupNames("orders", Options()), 8
    return member, holdings


def test_a_lease_that_is_being_taken_counts():
    """A member that takes its share takes no more before the answers, also when it moves again meanwhile."""
    sent = []
    member, _ = lonely(Clock(), sent)
    for _ in range(2):
        member._move({"me": 0, "other": 0})
    assert [sending.subject.rpartition(".")[2] for sending in sent] == ["0", "1", "2", "3"]


def test_everything_is_lost_after_a_lease_without_a_beat():
    """A member loses all one lease after its last confirmed heartbeat was sent, and gets no more before the next."""
    clock, sent = Clock(), []
    member, holdings = lonely(clock, sent)

    def take(partition):
        member._write_lease(partition, "me")
        sent.pop().end(Status.DURABLE, None, SimpleNamespace(seq=1))

    take(0)
    assert not holdings.held, "nothing is assigned before the first beat"
    member._beaten_s = clock.now_s
    take(1)
    clock.now_s += 4.9
    assert member.lose_overdue() == []
    assert [event.kind for event in holdings.poll()] == [ASSIGNED]
    clock.now_s += 0.2
    assert member.lose_overdue() == []
    assert [event.kind for event in holdings.poll()] == [LOST]
    take(2)
    assert not holdings.held


def test_what_the_checker_never_heard_of_is_freed_at_once():
    """A member above its share gives back partitions that were not polled, without asking."""
    clock, sent = Clock(), []
    member, holdings = lonely(clock, sent)
    member._beaten_s = clock.now_s
    for partition in range(8):
        member._leases[partition] = Lease("me", 1)
        holdings.assign(partition)
    for _ in range(2):
        member._move({"me": 8, "other": 0})
    assert [(sending.subject.rpartition(".")[2], sending.body) for sending in sent] == [
        (str(partition), b'{"owner":""}') for partition in (4, 5, 6, 7)
    ]
    assert [event.partition for event in holdings.poll()] == [0, 1, 2, 3]
