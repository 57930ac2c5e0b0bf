"""A group's topics are created once with the right settings, and verified later; errors name each difference."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from txcore_conformance import raw
from txcore_conformance.kit import error_of
from txcore_kafka.options import checkpoint_topic, topic_name

from txcore.errors import ConfigError
from txcore.records import LogKind, Status

HALF, OP, PARKED = LogKind.HALF, LogKind.OP, LogKind.PARKED


def change(kit, topic, **settings):
    """Change settings of a topic, and wait until the broker reports them."""
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    kit.admin.incremental_alter_configs([resource])[resource].result(10)
    wanted = {key.replace("_", "."): value for key, value in settings.items()}
    kit.until(lambda: wanted.items() <= kit.settings(topic).items(), "the new settings")


def test_topics_are_made_with_what_txcore_needs(kit):
    """The topics have the broker's time, deletion by age only and equal partitions; checkpoints are compacted."""
    assert kit.wait(kit.connect(partition_count=0, half_retention_s="1000").ensure_group(kit.group, 3)) == 3
    for kind, retention in ((HALF, "1000000"), (OP, "2000000"), (PARKED, "-1")):
        settings = kit.settings(topic_name(kit.group, kind))
        assert settings["message.timestamp.type"] == "LogAppendTime"
        assert settings["cleanup.policy"] == "delete"
        assert (settings["retention.ms"], settings["retention.bytes"]) == (retention, "-1")
    assert kit.settings(checkpoint_topic(kit.group))["cleanup.policy"] == "compact"
    for topic in (*(topic_name(kit.group, kind) for kind in LogKind), checkpoint_topic(kit.group)):
        assert len(kit.admin.list_topics(topic, 10).topics[topic].partitions) == 3


def test_many_may_make_a_group_at_once(kit):
    """Backends that create a group at the same time all get the same number of partitions."""
    backends = [kit.connect(partition_count=0) for _ in range(4)]
    futures = [backend.ensure_group(kit.group, 2) for backend in backends]
    assert [kit.wait(future) for future in futures] == [2] * 4


def test_what_is_left_of_a_broken_start_is_completed(kit):
    """A process that died while creating topics leaves no half topic; the next one creates the missing topics."""
    kit.make_topic(
        topic_name(kit.group, OP),
        partition_count=2,
        message_timestamp_type="LogAppendTime",
        retention_ms="-1",
    )
    assert kit.wait(kit.connect(partition_count=0).ensure_group(kit.group)) == 2


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (HALF, "message_timestamp_type", "CreateTime"),
        (OP, "message_timestamp_type", "CreateTime"),
        (HALF, "cleanup_policy", "compact"),
        (HALF, "retention_ms", "60000"),
        (OP, "retention_ms", "60000"),
        (PARKED, "retention_ms", "60000"),
        (HALF, "retention_bytes", "1000000"),
        (OP, "max_message_bytes", "2000"),
    ],
)
def test_another_setting_is_named(kit, kind, name, value):
    """The error for a changed setting names the topic, the setting and the required value."""
    kit.connect()
    topic = topic_name(kit.group, kind)
    change(kit, topic, **{name: value})
    error = error_of(lambda: kit.connect(partition_count=0).ensure_group(kit.group), kit.timeout_s)
    assert isinstance(error, ConfigError)
    key = name.replace("_", ".")
    assert error.key == key
    assert f"{topic} has {key}={value} and needs" in str(error)


def test_every_difference_is_named_at_once(kit):
    """One error names all changed settings, so that the operator need not correct them one by one."""
    kit.connect()
    change(kit, topic_name(kit.group, HALF), cleanup_policy="compact", retention_bytes="1000000")
    change(kit, topic_name(kit.group, OP), message_timestamp_type="CreateTime")
    error = error_of(lambda: kit.connect(partition_count=0).ensure_group(kit.group), kit.timeout_s)
    assert all(name in str(error) for name in ("cleanup.policy", "retention.bytes", "message.timestamp.type"))


def test_more_than_is_needed_is_no_difference(kit):
    """A longer retention and larger messages are accepted, as the operator may choose them."""
    kit.connect()
    change(kit, topic_name(kit.group, HALF), retention_ms="-1", max_message_bytes="5000000")
    assert kit.wait(kit.connect(partition_count=0).ensure_group(kit.group)) == 2


def test_a_longer_retention_than_the_topics_is_refused(kit):
    """A URL whose `half_retention_s` is longer than the half topic's retention is refused."""
    kit.connect(half_retention_s="1000")
    error = error_of(
        lambda: kit.connect(partition_count=0, half_retention_s="2000").ensure_group(kit.group), kit.timeout_s
    )
    assert isinstance(error, ConfigError)
    assert "retention.ms" in str(error)


def test_a_lost_topic_is_not_made_in_silence(kit):
    """A group without its op topic is a ConfigError: with a new, empty one every half would look undecided."""
    kit.connect()
    kit.delete(topic_name(kit.group, OP))

    def error():
        return error_of(lambda: kit.connect(partition_count=0).ensure_group(kit.group), kit.timeout_s)

    kit.until(lambda: isinstance(error(), ConfigError), "the loss to show")
    assert topic_name(kit.group, OP) in str(error())


def test_partitions_that_were_added_are_named(kit):
    """A half topic with more partitions than the op topic is refused, as each half log needs its op log."""
    kit.connect()
    topic = topic_name(kit.group, HALF)
    kit.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(10)

    def error():
        return error_of(lambda: kit.connect(partition_count=0).ensure_group(kit.group), kit.timeout_s)

    kit.until(error, "the new partition to show")
    assert error().key == "partition_count"


@pytest.mark.parametrize("group", ["", "with space", "with/slash", "ümlaut", "x" * 231])
def test_a_name_that_no_topic_can_have_is_refused(kit, group):
    """A group whose name cannot be part of a topic's name is refused."""
    error = error_of(lambda: kit.connect(partition_count=0).ensure_group(group), kit.timeout_s)
    assert isinstance(error, ConfigError)
    assert error.key == "group"


def test_a_group_that_others_made_is_used_without_ensure_group(kit):
    """A backend without `ensure_group` finds the group that another one created, and remembers its partitions."""
    kit.connect()
    topic = kit.topic()
    other = kit.connect(partition_count=0)
    halves = [raw.half(kit, topic) for _ in range(50)]
    assert {outcome.status for outcome in raw.append(kit, *halves, backend=other)} == {Status.DURABLE}
    assert other._control.partition_counts == {kit.group: 2}


def test_threads_end_with_their_backend(kit):
    """All threads of a backend, of its claim and of its reader end when it is closed."""
    before = {thread.name for thread in threading.enumerate()}
    backend = kit.connect()
    claim = backend.claim(kit.group, "me")
    reader = backend.read(kit.group, HALF, 0)
    reader.read(1)
    kit.until(claim.poll, "an assignment")
    kit.wait(backend.close(kit.timeout_s))
    kit.wait(claim.close(kit.timeout_s))

    def left():
        names = {thread.name for thread in threading.enumerate()} - before
        return [name for name in names if name.startswith("txcore-kafka-") and not name.endswith("close")]

    kit.until(lambda: not left(), "the end of the threads")
