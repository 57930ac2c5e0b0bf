"""`Reader.end` on replicated streams: the end after a marker, which a deposed leader cannot acknowledge."""

from __future__ import annotations

import asyncio
import json

import nats
import pytest
from txcore_conformance import raw
from txcore_conformance.deposed import wrong_ends
from txcore_conformance.kit import Kit, error_of, wait_until
from txcore_nats.codec import MESSAGE_NOT_FOUND, ApiError
from txcore_nats.testing import NatsHarness

from txcore.errors import BackendUnavailableError, ConfigError
from txcore.records import LogKind, OpKind, Position, Status

TOKEN = b"t" * 16


class Deposed:
    """An API that answers like the deposed leader of replicated streams, without records after *last*."""

    def __init__(self, api, monkeypatch):
        self.call_really = api.call
        self.last = None
        monkeypatch.setattr(api, "call", self.call)

    async def call(self, name, request=None):
        answer = await self.call_really(name, request)
        if name.startswith("STREAM.INFO"):
            answer["config"]["num_replicas"] = 3
            if self.last is not None:
                answer["state"]["last_seq"] = answer["state"]["messages"] = self.last
        if name.startswith("STREAM.MSG.GET") and self.last is not None and "next_by_subj" in (request or {}):
            raise ApiError(404, MESSAGE_NOT_FOUND, "no message found")
        return answer


def fill(kit, count):
    """Store halves of partition 0 and discard each of them."""
    topic = kit.topic()
    halves = [raw.half(kit, topic) for _ in range(count)]
    assert {outcome.status for outcome in raw.append(kit, *halves)} == {Status.DURABLE}
    raw.release(kit, *[raw.discard(half, TOKEN) for half in halves])
    return halves


@pytest.mark.parametrize("kind", list(LogKind))
def test_what_a_deposed_leader_says_is_no_end(kit, kind, monkeypatch):
    """A deposed leader's last sequence is not taken as the end, nor its answer that there are no more records."""
    raw.mark(kit, OpKind.CLAIM, TOKEN)
    fill(kit, 2)
    backend = kit.connect()
    deposed = Deposed(backend._shared.api, monkeypatch)
    reader = backend.read(kit.group, kind, 0)
    before = raw.read_to(kit, reader, kit.wait(reader.end()))
    deposed.last = int(reader.passed) - 1
    fill(kit, 3)
    last = kit.state(kit.harness._place_of(kit.group, kind, 0)[0])["last_seq"]
    late = backend.read(kit.group, kind, 0)
    for each, count in ((late, len(before) + 3), (reader, 3)):
        end = kit.wait(each.end())
        assert end > last
        assert len(raw.read_to(kit, each, end)) == count
    for each in (reader, late):
        each.close()


@pytest.mark.parametrize("kind", list(LogKind))
def test_markers_are_shared_and_hidden(kit, kind, monkeypatch):
    """Waiting questions share a marker; neither read nor fetch returns markers."""
    backend = kit.connect()
    Deposed(backend._shared.api, monkeypatch)
    reader, other = backend.read(kit.group, kind, 0), backend.read(kit.group, kind, 0)
    ends = [kit.wait(future) for future in [reader.end() for _ in range(200)]]
    assert ends == sorted(ends)
    stream, _ = kit.harness._place_of(kit.group, kind, 0)
    assert 1 <= kit.state(stream)["messages"] <= 20
    for each in (reader, other):
        assert raw.read_to(kit, each, ends[-1]) == []
    assert kit.wait(reader.fetch([Position(1)])) == {}
    for each in (reader, other):
        each.close()


def test_a_marker_that_was_removed_before_it_arrived_is_replaced(kit, monkeypatch):
    """A reader whose marker does not arrive appends another one, and passes the end."""
    monkeypatch.setattr("txcore_nats.reading.AGAIN_S", 0.1)
    backend = kit.connect()
    Deposed(backend._shared.api, monkeypatch)
    reader = backend.read(kit.group, LogKind.HALF, 0)
    raw.read_to(kit, reader, kit.wait(reader.end()))
    tail = reader._tail
    monkeypatch.setattr(
        tail, "_receiver", type("Deaf", (), {"received": lambda *_: None, "has_room": lambda _: True})()
    )
    end = kit.wait(reader.end())
    kit.until(lambda: tail._last == end - 1)
    monkeypatch.setattr(tail, "_receiver", reader)
    assert reader.passed < end
    assert raw.read_to(kit, reader, end) == []
    reader.close()


def test_the_end_of_a_group_that_was_deleted_is_a_config_error(kit, monkeypatch):
    """A question for the end of a deleted group is a ConfigError, although the client knew the group before."""
    backend = kit.connect()
    Deposed(backend._shared.api, monkeypatch)
    reader = backend.read(kit.group, LogKind.HALF, 0)
    kit.wait(reader.end())
    stream, _ = kit.harness._place_of(kit.group, LogKind.HALF, 0)
    kit.api(f"STREAM.DELETE.{stream}")
    assert isinstance(error_of(reader.end, kit.timeout_s), ConfigError)
    kit.history.unjudged = "its half log was deleted"
    reader.close()


def test_a_full_log_says_that_it_takes_no_marker(kit, monkeypatch):
    """The end of a replicated log without room for a marker is a BackendUnavailableError that names the stream."""
    backend = kit.connect()
    Deposed(backend._shared.api, monkeypatch)
    stream, _ = kit.harness._place_of(kit.group, LogKind.HALF, 0)
    kit.configure(stream, max_bytes=10)
    reader = backend.read(kit.group, LogKind.HALF, 0)
    error = error_of(reader.end, kit.timeout_s)
    assert isinstance(error, BackendUnavailableError)
    assert stream in str(error)
    reader.close()


def ask(url, subject, **request):
    """Ask JetStream at one node; return the answer and the node's name."""
    body = json.dumps(request).encode() if request else b""

    async def asking():
        client = await nats.connect(url)
        try:
            answer = await client.request(f"$JS.API.{subject}", body, timeout=5)
            return json.loads(answer.data), client._server_info["server_name"]
        finally:
            await client.close()

    return asyncio.run(asking())


@pytest.mark.heavy
def test_a_leader_that_was_deposed_while_it_was_frozen_reports_no_end(cluster):
    """A reader connected to a leader that was deposed while it was frozen returns no wrong end."""
    harness = NatsHarness(cluster.nodes[0])
    harness.start()
    harness.url = f"{cluster.url}?replicas=3&delivery_timeout_s=30&control_timeout_s=30"
    harness.timeout_s = 90.0
    kit = Kit(harness)
    wait_until(lambda: error_of(lambda: kit.backend.ensure_group(kit.group, 2), 60.0) is None, "a group", 90.0)
    topic = f"target-{kit.group}"
    answer, _ = ask(cluster.nodes[0].url, f"STREAM.CREATE.{topic}", name=topic, subjects=[topic], num_replicas=3)
    assert "error" not in answer, answer
    info = f"STREAM.INFO.txc_{kit.group}_half"
    nodes = {ask(node.url, info)[1]: node for node in cluster.nodes}
    name = ask(cluster.nodes[0].url, info)[0]["cluster"]["leader"]
    leader = nodes[name]
    rest = [node for node in cluster.nodes if node is not leader]
    rest_url = "nats://" + ",".join(node.url.partition("://")[2] for node in rest)

    def has_other_leader():
        try:
            return ask(rest[0].url, info)[0]["cluster"].get("leader") not in {None, "", name}
        except Exception:  # noqa: BLE001 - none yet
            return False

    asking = harness.open(f"{leader.url}?replicas=3")
    open_others = lambda: harness.open(f"{rest_url}?replicas=3&delivery_timeout_s=4")  # noqa: E731
    assert wrong_ends(kit, topic, leader, asking, open_others, has_other_leader) == 0
    kit.wait(asking.close(5.0))
    kit.close()
    harness.stop()
