"""Members of a group on a real broker: sharing, handing over, taking over from killed and frozen members."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time

from pika import exceptions
from txcore_conformance import raw
from txcore_rabbitmq.names import claim_name
from txcore_rabbitmq.testing import connect

from txcore.errors import ClosedError, ConfigError
from txcore.records import ClaimEventKind, OpKind, Resolution, Status

_log = logging.getLogger("tests")
ASSIGNED, REVOKING, LOST = ClaimEventKind.ASSIGNED, ClaimEventKind.REVOKING, ClaimEventKind.LOST
KILLED_MAX_S = 15.0
FROZEN_MAX_S = 40.0
RESOURCE_LOCKED = 405


class Member:
    """A claim and its partitions; `obeys` sets whether it gives up revoked partitions."""

    def __init__(self, backend, group, name, *, obeys=True):
        self.claim = backend.claim(group, name)
        self.obeys = obeys
        self.held = set()
        self.heard = []

    def poll(self):
        for event in self.claim.poll():
            self.heard.append((event.kind, event.partition))
            if event.kind is ASSIGNED:
                self.held.add(event.partition)
            elif event.kind is LOST or self.obeys:
                self.held.discard(event.partition)
                self.claim.give_up(event.partition)
        return self.held


def poll(members):
    """Poll all members; return their numbers of partitions. No two members may hold one partition."""
    held = [set(member.poll()) for member in members]
    assert len(set().union(*held)) == sum(map(len, held))
    return [len(each) for each in held]


def test_five_members_come_and_go(kit):
    """After each change of members all partitions are held, and the shares differ by one at most."""
    backend = kit.connect(partition_count=8)
    members = []
    for count in range(1, 6):
        members.append(Member(backend, kit.group, f"m{count}"))
        kit.until(lambda: sum(shares := poll(members)) == 8 and max(shares) - min(shares) <= 1)
    while len(members) > 1:
        kit.wait(members.pop(0).claim.close(5.0))
        kit.until(lambda: sum(shares := poll(members)) == 8 and max(shares) - min(shares) <= 1)
    moved = [kind for kind, _ in members[0].heard]
    assert LOST not in moved


def test_members_that_join_at_once_share_without_a_detour(kit):
    """Two members that join at the same time take one partition each, with at most four events."""
    kit.wait(kit.backend.ensure_group(kit.group))
    members = [Member(kit.open(), kit.group, name) for name in ("a", "b")]
    kit.until(lambda: poll(members) == [1, 1])
    assert sum(len(member.heard) for member in members) <= 4


def test_a_member_that_does_not_obey_loses_its_surplus_after_drain_s(kit):
    """A member that ignores REVOKING gets LOST after its drain time, and the new member gets the partition."""
    deaf = Member(kit.connect(drain_s=0.5), kit.group, "deaf", obeys=False)
    kit.until(lambda: poll([deaf]) == [2])
    other = Member(kit.connect(), kit.group, "other")
    kit.until(lambda: poll([deaf, other]) == [1, 1])
    assert [kind for kind, _ in deaf.heard] == [ASSIGNED, ASSIGNED, REVOKING, LOST]


def test_a_late_answer_does_not_give_up_a_new_assignment(kit):
    """A give_up of the last polled assignment does not end the assignment after it."""
    member = Member(kit.connect(), kit.group, "me", obeys=False)
    kit.until(lambda: poll([member]) == [2])
    link, loop = member.claim._link, kit.opened[0]._reading
    loop.call(link._connection.close)  # partitions are lost and assigned again without a poll
    kit.until(lambda: len(member.claim._holdings._events) == 4)
    member.claim.give_up(0)
    seen = threading.Event()
    loop.call(lambda: loop.later(0.3, seen.set))
    assert seen.wait(5.0)
    kit.until(lambda: poll([member]) == [2])
    assert [kind for kind, _ in member.heard] == [ASSIGNED, ASSIGNED, LOST, LOST, ASSIGNED, ASSIGNED]


def test_giving_up_what_is_over_or_never_was_changes_nothing(kit):
    """A give_up changes nothing if the last polled assignment was given up or lost already, or never existed."""
    member = Member(kit.connect(), kit.group, "me", obeys=False)
    kit.until(lambda: poll([member]) == [2])
    member.claim.give_up(7)
    member.claim.give_up(0)
    kit.until(lambda: len(member.claim._holdings._events) == 1)  # assigned again, but not polled
    member.claim.give_up(0)
    kit.until(lambda: (member.poll() and member.heard[2:]) == [(ASSIGNED, 0)])
    kit.opened[0]._reading.call(member.claim._link._connection.close)
    kit.until(lambda: len(member.claim._holdings._events) == 4)  # lost and assigned again, but not polled
    for partition in (0, 1):
        member.claim.give_up(partition)
    seen = threading.Event()
    kit.opened[0]._reading.call(lambda: kit.opened[0]._reading.later(0.3, seen.set))
    assert seen.wait(5.0)
    kit.until(lambda: len(member.poll()) == 2)
    assert [kind for kind, _ in member.heard[3:]] == [LOST, LOST, ASSIGNED, ASSIGNED]


def test_takeover_after_a_kill(kit):
    """Another member has a killed member's partitions within 15 s."""
    backend = kit.connect(partition_count=4)
    child = kit.child("hold", kit.address(), kit.group)
    assert "held 0 1 2 3\n" in iter(child.stdout.readline, "")
    other = Member(backend, kit.group, "other")
    kit.until(lambda: poll([other]) == [2])
    child.kill()
    took_s, _ = kit.lasts_s(lambda: kit.until(lambda: poll([other]) == [4]))
    _log.info("takeover after a kill: %.1f s", took_s)
    assert took_s < KILLED_MAX_S


def test_takeover_after_a_freeze_and_the_thawed_owner_is_harmless(kit):
    """Another member has a frozen member's partitions within 40 s; after the thaw they share again."""
    kit.timeout_s = FROZEN_MAX_S + 10
    backend = kit.connect(partition_count=4)
    child = kit.child("hold", kit.address(), kit.group)
    assert "held 0 1 2 3\n" in iter(child.stdout.readline, "")
    other = Member(backend, kit.group, "other")
    kit.until(lambda: poll([other]) == [2])
    os.kill(child.pid, signal.SIGSTOP)
    took_s, _ = kit.lasts_s(lambda: kit.until(lambda: poll([other]) == [4]))
    _log.info("takeover after a freeze: %.1f s", took_s)
    assert took_s < FROZEN_MAX_S
    os.kill(child.pid, signal.SIGCONT)
    kit.until(lambda: poll([other]) == [2])


def test_claims_are_in_log_order_whichever_member_holds_the_lock(kit):
    """A late record of a replaced owner is stored after the new CLAIM, where it does not count."""
    first, second = kit.connect(claim_heartbeat_s=1), kit.connect(claim_heartbeat_s=1)
    old = Member(first, kit.group, "old")
    kit.until(lambda: len(old.poll()) == 2)
    half = raw.half(kit, kit.queue())
    raw.append(kit, half, backend=first)
    raw.mark(kit, OpKind.CLAIM, b"1" * 16, backend=first)
    thaw = threading.Event()
    first._reading.call(lambda: thaw.wait(30))  # freezes it: it answers no heartbeat
    try:
        new = Member(second, kit.group, "new")
        kit.until(lambda: len(new.poll()) == 2)
        raw.mark(kit, OpKind.CLAIM, b"2" * 16, backend=second)
        stale = Resolution(half, raw.op(half, OpKind.CHECKED, b"1" * 16, count=1), flush=True)
        assert raw.release(kit, stale, backend=first)[0].status is Status.DURABLE
    finally:
        thaw.set()
    found = [(op.kind, op.token) for op in raw.ops(kit, backend=second)]
    assert found == [(OpKind.CLAIM, b"1" * 16), (OpKind.CLAIM, b"2" * 16), (OpKind.CHECKED, b"1" * 16)]
    kit.until(lambda: (LOST, 0) in ((old.poll() and old.heard) or old.heard))


def test_a_lock_that_another_client_holds_is_left_alone_and_taken_later(kit):
    """A member takes the other partition while a plain client holds one's lock, and this one after it is free."""
    backend, channel = kit.connect(), kit.channel()
    channel.queue_declare(claim_name(kit.group, 0), exclusive=True, arguments={"x-queue-type": "classic"})
    member = Member(backend, kit.group, "me")
    kit.until(lambda: member.poll() == {1})
    channel.queue_delete(claim_name(kit.group, 0))
    kit.until(lambda: member.poll() == {0, 1})


def test_a_lock_that_no_live_connection_can_hold_gets_a_substitute(kit):
    """A lock held for longer than heartbeats allow gets a substitute, which other members respect."""
    backend, channel = kit.connect(claim_heartbeat_s=1), kit.channel()
    channel.queue_declare(claim_name(kit.group, 0), exclusive=True, arguments={"x-queue-type": "classic"})
    member = Member(backend, kit.group, "me")
    kit.until(lambda: member.poll() == {0, 1})
    with contextlib.closing(connect(kit.broker.url)) as other:
        missing = error_of_declare(other.channel(), claim_name(kit.group, 0, 1))
    assert missing == RESOURCE_LOCKED
    second = Member(backend, kit.group, "second")
    kit.until(lambda: poll([member, second]) == [1, 1])
    kit.wait(member.claim.close(5.0))
    kit.until(lambda: second.poll() == {0, 1})
    channel.queue_delete(claim_name(kit.group, 0))
    third = Member(backend, kit.group, "third")
    kit.until(lambda: poll([second, third]) == [1, 1])


def error_of_declare(channel, name):
    """Return the code with which the broker refuses a passive declare, or 0 if it accepts it."""
    try:
        channel.queue_declare(name, passive=True)
    except exceptions.ChannelClosedByBroker as error:
        return error.reply_code
    return 0


def test_each_connection_of_a_member_listens_on_a_queue_of_its_own(kit):
    """A member's new connection uses a new queue, so it can join again while its old queue is locked."""
    member = Member(kit.connect(), kit.group, "me")
    kit.until(lambda: len(member.poll()) == 2)
    before = member.claim._presence._queue
    held = kit.channel()
    kit.opened[0]._reading.call(member.claim._link._connection.close)
    kit.until(lambda: (LOST, 0) in ((member.poll() and member.heard) or member.heard))
    with contextlib.suppress(exceptions.ChannelClosedByBroker):
        held.queue_declare(before, exclusive=True, arguments={"x-queue-type": "classic"})
    kit.until(lambda: len(member.poll()) == 2)
    assert member.claim._presence._queue != before


def test_members_that_cannot_hear_each_other_still_never_hold_one_together(kit):
    """After the exchange of announcements is deleted, no partition has two owners, and the members share again."""
    backend = kit.connect()
    first = Member(backend, kit.group, "first")
    kit.until(lambda: poll([first]) == [2])
    kit.channel().exchange_delete(f"txc.{kit.group}.members")
    second = Member(backend, kit.group, "second")
    kit.until(lambda: poll([first, second]) == [1, 1])


def test_a_group_that_was_not_made_cannot_be_joined(kit):
    """`poll` of a claim for a missing group raises ConfigError each time."""
    claim = kit.backend.claim(f"no-{kit.group}", "me")

    def refused():
        try:
            claim.poll()
        except ConfigError as error:
            return str(error)
        return ""

    assert f"no-{kit.group}" in kit.until(refused)
    assert refused()
    kit.wait(claim.close(1.0))


def test_a_closed_claim_is_closed(kit):
    """A closed claim refuses poll and checkpoint; closing it twice is allowed."""
    claim = Member(kit.connect(), kit.group, "me").claim
    began_s = time.monotonic()
    kit.wait(claim.close(5.0))
    kit.wait(claim.close(5.0))
    assert time.monotonic() - began_s < 5.0
    for call in (claim.poll, lambda: claim.checkpoint(0, None)):
        try:
            call()
        except ClosedError:
            continue
        raise AssertionError("a closed claim answered")


def test_strange_announcements_are_ignored(kit):
    """Members ignore announcements in an unknown form, and share as usual."""
    member = Member(kit.connect(), kit.group, "me")
    kit.until(lambda: len(member.poll()) == 2)
    channel = kit.channel()
    for body in (b"", b"hello", b"\x93\x01\x02\x03"):
        channel.basic_publish(f"txc.{kit.group}.members", "", body)
    other = Member(kit.connect(), kit.group, "other")
    kit.until(lambda: poll([member, other]) == [1, 1])
