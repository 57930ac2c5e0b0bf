"""Three nodes on loopback: streams with three replicas outlive the node that everybody was connected to."""

from __future__ import annotations

import contextlib

import pytest
from txcore_conformance import brokers, raw
from txcore_conformance.kit import Kit, error_of
from txcore_rabbitmq.testing import RabbitmqHarness, connect

from txcore import wire
from txcore.errors import BackendUnavailableError
from txcore.records import LogKind, Status

pytestmark = pytest.mark.heavy
DURABLE = Status.DURABLE


@pytest.fixture(scope="module")
def cluster():
    try:
        made = brokers.cluster("rabbitmq")
    except brokers.ServerUnavailableError as error:
        if brokers.is_required("rabbitmq"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    yield made
    made.remove()


def test_a_node_is_lost_and_comes_back(cluster):
    """Acknowledged halves and targets are there afterwards; the client goes on at another node by itself."""
    harness = RabbitmqHarness(cluster.nodes[0])
    harness.url = cluster.url + "?replicas=3&control_timeout_s=30"
    harness.timeout_s = 90.0
    kit = Kit(harness)
    queue = f"target-{kit.group}"
    with connect(cluster.nodes[1].url) as connection:
        arguments = {"x-queue-type": "quorum"}
        connection.channel().queue_declare(queue, durable=True, arguments=arguments)
    try:
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
    finally:
        kit.close()
