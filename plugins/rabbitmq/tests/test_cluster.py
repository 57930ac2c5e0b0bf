"""Three nodes on loopback: streams and checkers outlive the node to which their clients were connected."""

from __future__ import annotations

import contextlib
import logging
import time

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, Answers, Kit, error_of, wait_until
from txcore_rabbitmq.testing import RabbitmqHarness, connect

from txcore import Message, wire
from txcore.errors import BackendUnavailableError
from txcore.records import ClaimEventKind, LogKind, OpKind, Status

pytestmark = pytest.mark.heavy
DURABLE = Status.DURABLE
TAKEOVER_MAX_S = 60.0
ORPHAN_COUNT = 20
OPTIONS = "?replicas=3&control_timeout_s=30"
_log = logging.getLogger("tests")


@pytest.fixture
def kit(cluster):
    """A group on the whole cluster; its own connections are at node 0. Every node runs when the test begins."""
    cluster.start()
    harness = RabbitmqHarness(cluster.nodes[0])
    harness.url = cluster.url + OPTIONS
    harness.timeout_s = 90.0
    made = Kit(harness)
    # A node that has just come back does not serve all requests at once.
    wait_until(lambda: error_of(lambda: made.backend.load_checkpoint(made.group, 0), 60.0) is None, "a group", 90.0)
    yield made
    made.close()


def target(cluster, kit):
    """Declare a quorum queue and return its name."""
    queue = f"target-{kit.group}"
    with connect(cluster.nodes[1].url) as connection:
        connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    return queue


def at_node_2(cluster, kit):
    """Return a connection whose first node is the last one of the cluster."""
    nodes = [node.url.rpartition("@")[2].strip("/") for node in reversed(cluster.nodes)]
    login = cluster.url.rpartition("@")[0]
    return kit.enlist(kit.harness.open(f"{login}@{','.join(nodes)}/{OPTIONS}"))


def held(claims):
    """Poll the claims, obey their events, and return the partitions that each holds now."""
    for claim, partitions in claims.items():
        for event in claim.poll():
            if event.kind is ClaimEventKind.ASSIGNED:
                partitions.add(event.partition)
            else:
                partitions.discard(event.partition)
                claim.give_up(event.partition)
    return [sorted(partitions) for partitions in claims.values()]


def is_shared(claims):
    """Return whether each of the claims holds one of the two partitions."""
    return sorted(held(claims)) == [[0], [1]]


def test_takeover_with_a_node_of_the_cluster_lost(cluster, kit):
    """Two members hold a partition each again within a minute after the node of one died; a third takes over later."""
    first, second = kit.backend, at_node_2(cluster, kit)
    claims = {first.claim(kit.group, "first"): set(), second.claim(kit.group, "second"): set()}
    kit.until(lambda: is_shared(claims), "two members share")
    cluster.nodes[0].kill()
    began_s = time.monotonic()
    kit.until(lambda: held(claims)[0] == [], "the member at the dead node hears that it lost its partition")
    kit.until(lambda: is_shared(claims), "they share again")
    took_s = time.monotonic() - began_s
    _log.info("takeover with a node lost: %.1f s", took_s)
    assert took_s < TAKEOVER_MAX_S
    for number, (backend, partitions) in enumerate(zip((first, second), held(claims), strict=True)):
        token = b"%d" % number * 16
        assert raw.mark(kit, OpKind.CLAIM, token, partition=partitions[0], backend=backend)[1].status is DURABLE
    cluster.nodes[0].start()
    third = kit.open()
    claims[third.claim(kit.group, "third")] = set()
    for claim in list(claims)[:2]:
        kit.wait(claim.close(5.0))
        del claims[claim]
    kit.until(lambda: held(claims) == [[0, 1]], "a member that joins later takes everything over")
    kit.wait(next(iter(claims)).close(5.0))


@pytest.mark.parametrize("count", [1, 2])
def test_orphans_are_judged_although_the_checkers_node_is_lost(cluster, kit, count):
    """All orphans are delivered within a minute after a checker's node died, with another checker or without."""
    queue, listener = target(cluster, kit), Answers()
    backends = [kit.backend, at_node_2(cluster, kit)][:count]
    checkers = [kit.checker(listener, backend=backend, check_max=100_000, interval_s=0.5) for backend in backends]
    for checker in checkers:
        checker.start()
    own = [2] if count == 1 else [1, 1]
    kit.until(lambda: [sum(each.is_claimed for each in c.stats().partitions) for c in checkers] == own, "they share")
    for number in range(ORPHAN_COUNT):
        kit.orphan(Message(queue, b"%d" % number))
    kit.until(lambda: len({each.transaction_id for each in listener.asked}) == ORPHAN_COUNT, "each was asked for")

    cluster.nodes[0].kill()
    began_s, listener.answer, found = time.monotonic(), COMMIT, set()
    with connect(cluster.nodes[1].url) as connection:
        channel = connection.channel()

        def are_delivered():
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.add(got[2])
            return len(found) == ORPHAN_COUNT

        kit.until(are_delivered, "every orphan")
    took_s = time.monotonic() - began_s
    _log.info("%d orphans with %d checkers: %.1f s", ORPHAN_COUNT, count, took_s)
    assert took_s < TAKEOVER_MAX_S
    kit.until(lambda: sum(each.is_claimed for c in checkers for each in c.stats().partitions) == 2, "all are owned")


def test_a_node_is_lost_and_comes_back(cluster, kit):
    """After a node dies, the client continues at another one by itself, and all DURABLE halves and targets exist."""
    queue = target(cluster, kit)
    stored = [raw.half(kit, queue, body=b"%d" % number) for number in range(200)]
    assert {outcome.status for outcome in raw.append(kit, *stored)} == {DURABLE}
    released = stored[:100]
    ends = raw.release(kit, *[raw.commit(half, flush=False) for half in released])
    assert {outcome.status for outcome in ends} == {DURABLE}

    cluster.nodes[0].kill()
    late = raw.half(kit, queue, body=b"late")
    kit.until(lambda: raw.append(kit, late)[0].status is DURABLE, "a half on two nodes")
    kit.until(lambda: raw.release(kit, raw.commit(late))[0].status is DURABLE, "a release on two nodes")
    assert kit.wait(kit.backend.ensure_group(kit.group)) == 2
    bodies = set()
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)

    def all_read():
        with contextlib.suppress(BackendUnavailableError):
            bodies.update(record.body for record in reader.read(100))
        return bodies >= {half.body for half in (*stored, late)}

    kit.until(all_read, "every acknowledged half")

    cluster.nodes[0].start()
    found = set()
    with connect(cluster.nodes[0].url) as connection:
        channel = connection.channel()

        def all_found():
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                identity = got[1].headers[wire.HEADER_ID]
                found.add(identity if isinstance(identity, str) else identity.decode())
            return found >= {wire.target_id(half.transaction_id, 0) for half in (*released, late)}

        kit.until(all_found, "every acknowledged target")
    assert error_of(lambda: kit.backend.load_checkpoint(kit.group, 0), kit.timeout_s) is None
