"""Ownership of partitions: draining, giving up, silence, and members that die or freeze."""

from __future__ import annotations

import os
import signal
import time

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from txcore_kafka.options import consumer_group, topic_name

from txcore.errors import ClosedError, ConfigError
from txcore.records import ClaimEventKind, LogKind

ASSIGNED, REVOKING, LOST = ClaimEventKind.ASSIGNED, ClaimEventKind.REVOKING, ClaimEventKind.LOST


class Member:
    """A claim whose events a test handles one by one."""

    def __init__(self, kit, name, **options):
        self.kit = kit
        self.claim = kit.connect(**options).claim(kit.group, name)
        self.heard = []
        self.held = set()

    def poll(self, *, obeys=True):
        for event in self.claim.poll():
            self.heard.append((event.kind, event.partition))
            if event.kind is ASSIGNED:
                self.held.add(event.partition)
            else:
                self.held.discard(event.partition)
                if event.kind is REVOKING and obeys:
                    self.claim.give_up(event.partition)
        return self.held


def test_a_partition_changes_hands_only_after_it_was_given_up(kit):
    """A second member gets no partition until the first one has given its partitions up."""
    first = Member(kit, "first", drain_s="10")
    kit.until(lambda: first.poll() == {0, 1}, "every partition")
    second = Member(kit, "second", drain_s="10")
    kit.until(lambda: len([kind for kind, _ in first.heard if kind is REVOKING]) == 2 or not first.poll(obeys=False))
    draining_s = time.monotonic() + 1.5
    while time.monotonic() < draining_s:
        assert second.poll() == set()
    for partition in (0, 1):
        first.claim.give_up(partition)
    kit.until(lambda: first.poll() | second.poll() == {0, 1} and second.held, "a share for each")
    assert not first.held & second.held


def test_draining_for_too_long_is_lost(kit):
    """After `drain_s` a member that does not give up gets LOST, and the other member gets its share."""
    first = Member(kit, "first", drain_s="0.5")
    kit.until(lambda: first.poll() == {0, 1}, "every partition")
    second = Member(kit, "second")
    kit.until(lambda: first.poll(obeys=False) is not None and second.poll(), "a share of the second's")
    assert {(REVOKING, 0), (LOST, 0), (REVOKING, 1), (LOST, 1)} <= set(first.heard)


def test_giving_up_unasked_disturbs_no_other_member(kit):
    """The other member of the group gets no event when a member gives up unasked."""
    first, second = Member(kit, "first"), Member(kit, "second")
    kit.until(lambda: first.poll() | second.poll() == {0, 1} and first.held and second.held, "a share for each")
    (mine,) = first.held
    count = len(second.heard)
    first.claim.give_up(mine)
    first.held.clear()
    kit.until(lambda: first.poll() == {mine}, "the partition again")
    second.poll()
    assert len(second.heard) == count


def test_a_killed_member_is_followed_within_15_s(kit):
    """With the default session timeout of 10 s, another member has a killed member's partitions within 15 s."""
    kit.connect()
    dead = kit.child("hold", kit.address(session_timeout_s="10"), kit.group, "dead")
    assert {dead.stdout.readline().strip() for _ in range(2)} == {"assigned 0", "assigned 1"}
    heir = Member(kit, "heir", session_timeout_s="10")
    kit.until(heir.poll, "a share")
    dead.kill()
    began_s = time.monotonic()
    kit.until(lambda: heir.poll() == {0, 1}, "the dead one's share")
    assert time.monotonic() - began_s < 15


def test_a_frozen_member_hears_that_it_lost_all(kit):
    """A frozen member loses its partitions to another one; after it thaws, it gets LOST and joins again."""
    kit.connect()
    frozen = kit.child("hold", kit.address(session_timeout_s="6"), kit.group, "frozen")
    assert {frozen.stdout.readline().strip() for _ in range(2)} == {"assigned 0", "assigned 1"}
    os.kill(frozen.pid, signal.SIGSTOP)
    heir = Member(kit, "heir", session_timeout_s="6")
    kit.until(lambda: heir.poll() == {0, 1}, "what the frozen one had")
    os.kill(frozen.pid, signal.SIGCONT)
    assert {frozen.stdout.readline().strip() for _ in range(2)} == {"lost 0", "lost 1"}
    kit.until(lambda: len(heir.poll()) == 1, "a share for the thawed one")


def test_members_fetch_nothing(kit):
    """A member joins its consumer group with the half topic only, under its own name."""
    member = Member(kit, "me")
    kit.until(lambda: member.poll() == {0, 1}, "every partition")
    group = consumer_group(kit.group)
    described = kit.admin.describe_consumer_groups([group])[group].result(10)
    (seen,) = described.members
    assert {place.topic for place in seen.assignment.topic_partitions} == {topic_name(kit.group, LogKind.HALF)}
    assert seen.client_id == "me"


def test_nothing_is_committed_to_the_consumer_group(kit):
    """A member commits no offset to the consumer group, as checkpoints have a topic of their own."""
    member = Member(kit, "me")
    kit.until(lambda: member.poll() == {0, 1}, "every partition")
    kit.wait(member.claim.close(kit.timeout_s))
    group = consumer_group(kit.group)
    places = [TopicPartition(topic_name(kit.group, LogKind.HALF), 0)]
    (answer,) = kit.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
    assert [place.offset for place in answer.result(10).topic_partitions] == [-1001]


def test_a_claim_for_a_group_that_was_not_made_fails(kit):
    """A claim for a missing group raises ConfigError from poll; closing it is allowed."""
    claim = kit.connect(partition_count=0).claim("never-made", "me")
    with pytest.raises(ConfigError):
        kit.until(claim.poll, "the refusal")
    kit.wait(claim.close(5))


def test_a_closed_claim_refuses_to_poll(kit):
    """A closed claim refuses to poll; closing it twice is allowed."""
    claim = kit.connect().claim(kit.group, "me")
    kit.wait(claim.close(5))
    kit.wait(claim.close(5))
    with pytest.raises(ClosedError):
        claim.poll()


def test_closing_while_draining_is_quick(kit):
    """Closing a claim while it drains does not wait for `drain_s`; another member takes over at once."""
    first = Member(kit, "first", drain_s="60")
    kit.until(lambda: first.poll() == {0, 1}, "every partition")
    second = Member(kit, "second")
    kit.until(lambda: not first.poll(obeys=False), "being asked for all")
    began_s = time.monotonic()
    kit.wait(first.claim.close(kit.timeout_s))
    assert time.monotonic() - began_s < 10
    kit.until(lambda: second.poll() == {0, 1}, "every partition")
