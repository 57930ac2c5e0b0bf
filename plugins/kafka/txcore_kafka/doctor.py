"""`txcore doctor` on Kafka: brokers, the group's topics, targets, and Kafka's own topics, through the admin API.

Source: Kafka documentation of broker and topic settings (`min.insync.replicas`, `unclean.leader.election.enable`,
`message.timestamp.type`, `retention.*`, `auto.create.topics.enable`); librdkafka issue 5423 (no second version of the
transaction protocol); KIP-664 (the tool that finds and aborts hanging transactions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import confluent_kafka

from txcore.findings import (
    Check,
    Examination,
    Finding,
    Request,
    counted,
    duration,
    fail,
    for_production,
    ok,
    shortened,
    size,
    version_of,
    warn,
)
from txcore.records import LogKind
from txcore_kafka import doctor_exposure
from txcore_kafka.doctor_access import KafkaSubject, TopicView
from txcore_kafka.options import TRANSACTION, Options, topic_name

VERSION_OLDEST: Final = "2.4"
VERSION_KEPT: Final = "3.9"
CLIENT_OLDEST: Final = "2.14.2"
BROKERS_WANTED: Final = 3
REPLICAS_WANTED: Final = 3
IN_SYNC_WANTED: Final = 2
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
CONFIGURE: Final = "kafka-configs.sh --bootstrap-server HOST:9092 --alter"
HANGING: Final = "kafka-transactions.sh --bootstrap-server HOST:9092"


def kafka_examination(options: Options, request: Request) -> Examination[KafkaSubject]:
    """Connect and return the checks.

    Raises:
        BackendUnavailableError: the cluster cannot be reached, or refuses the login.
    """
    subject = KafkaSubject(options, request)
    subject.connect()
    return Examination(CHECKS, subject, lambda: None)


# -- client and brokers -------------------------------------------------------------------------------------------


def _client(_subject: KafkaSubject) -> Finding:
    version = str(confluent_kafka.libversion()[0])
    if version_of(version) < version_of(CLIENT_OLDEST):
        text = f"librdkafka {version} is older than {CLIENT_OLDEST}, before which reading could pass over records"
        return fail(text, f'pip install "confluent-kafka>={CLIENT_OLDEST}"')
    return ok(f"librdkafka {version}")


def _version(subject: KafkaSubject) -> Finding:
    version = subject.broker_setting("inter.broker.protocol.version")
    if not version:
        return ok("Kafka 4.0 or later")
    if version_of(version) < version_of(VERSION_OLDEST):
        return fail(f"Kafka {version} is older than {VERSION_OLDEST}", f"upgrade to {VERSION_KEPT} or later")
    if version_of(version) < version_of(VERSION_KEPT):
        return warn(f"Kafka {version} gets no fixes any more", f"upgrade to {VERSION_KEPT} or later")
    return ok(f"Kafka {version}")


def _brokers(subject: KafkaSubject) -> Finding:
    count = len(subject.metadata.brokers)
    if count < BROKERS_WANTED:
        return for_production(
            fail(
                f"{counted(count, 'broker')}: Kafka acknowledges without syncing to disk and relies on other brokers, "
                "so a power failure loses halves",
                "two more brokers on other machines; then replicas for the group's topics (see kafka.replicas)",
            )
        )
    return ok(counted(count, "broker"))


def _racks(subject: KafkaSubject) -> Finding:
    racks = [node.rack for node in subject.nodes]
    named = {rack for rack in racks if rack}
    if len(racks) > 1 and len(named) == 1:
        text = f"all {len(racks)} brokers are in rack {named.pop()!r}: they may lose power together"
        return warn(text, "broker.rack = its zone, in each broker's server.properties")
    return ok(f"brokers are in {len(named)} racks" if named else "brokers report no racks")


def _auto_create(subject: KafkaSubject) -> Finding:
    if subject.broker_setting("auto.create.topics.enable") != "true":
        return ok("auto.create.topics.enable is false")
    text = "auto.create.topics.enable is true: other clients' misspelt topics come to be, with the default replicas"
    return warn(text, "auto.create.topics.enable=false in each broker's server.properties")


def _session_timeout(subject: KafkaSubject) -> Finding:
    wanted_s = subject.options.session_timeout_s
    low_s, high_s = (
        float(subject.broker_setting(f"group.{bound}.session.timeout.ms") or default) / 1000
        for bound, default in (("min", "0"), ("max", "inf"))
    )
    if low_s <= wanted_s <= high_s:
        return ok(f"the broker takes session_timeout_s={wanted_s:g}")
    bound = "min" if wanted_s < low_s else "max"
    text = f"the broker takes session timeouts from {low_s:g} to {high_s:g} s, not {wanted_s:g}: no checker can join"
    return fail(
        text,
        f"session_timeout_s={low_s if bound == 'min' else high_s:g} in the backend's URL, or "
        f"group.{bound}.session.timeout.ms={wanted_s * 1000:.0f} in server.properties",
    )


def _transactions(subject: KafkaSubject) -> Finding:
    if subject.options.release != TRANSACTION:
        return ok("no transactions are used (release=steps)")
    return warn(
        "release=transaction: librdkafka speaks the first version of the protocol only, in which a delayed EndTxn may "
        "tear a later transaction (librdkafka #5423)",
        "release=steps, if duplicates are better than that risk; readers of targets need read_committed",
    )


def _hanging(subject: KafkaSubject) -> Finding:
    if subject.options.release != TRANSACTION:
        return ok("no transaction can hang (release=steps)")
    return warn(
        "release=transaction: a killed broker may complete a commit without its marker in a partition (seen on 4.3.1): "
        "readers stop there, and halves stay undecided",
        f"release=steps; else, after a crash of a broker, {HANGING} find-hanging --topic "
        f"{topic_name(subject.request.group, LogKind.OP)}, then its command abort for what it finds",
    )


# -- the group's topics ---------------------------------------------------------------------------------------------


def _topics(subject: KafkaSubject) -> Finding:
    group, found = subject.request.group, subject.present_topics
    if not found:
        return fail(f"group {group!r} has no topics", f"txcore topics create --broker URL --group {group}")
    missing = [name for name, view in subject.own_topics.items() if view is None]
    if missing:
        return fail(f"topics are missing: {shortened(missing)}; what they held is lost", "another group name")
    counts = {view.name: view.partition_count for view in found}
    if len(set(counts.values())) > 1:
        text = f"partitions differ: {', '.join(f'{name} {count}' for name, count in counts.items())}"
        return fail(f"{text}; the number may never change", "another group name: partitions cannot be taken away")
    return ok(f"{len(found)} topics with {counted(found[0].partition_count, 'partition')} each")


def _replicas(subject: KafkaSubject) -> Finding:
    return _few_replicas(subject.present_topics) or ok(f"{REPLICAS_WANTED} or more replicas of each topic")


def _in_sync(subject: KafkaSubject) -> Finding:
    dead = [view for view in subject.present_topics if view.leaderless]
    if dead:
        count = sum(view.leaderless for view in dead)
        text = f"without a leader: {counted(count, 'partition')} ({_names(dead)}); nothing reaches them"
        return fail(text, "start the broker that is down: kafka-topics.sh --describe --unavailable-partitions")
    lagging = [view for view in subject.present_topics if view.lagging]
    if not lagging:
        return ok("all replicas are in sync")
    text = f"a replica lacks in {counted(sum(view.lagging for view in lagging), 'partition')} ({_names(lagging)})"
    return warn(text, "start the broker that is down, or see its log: kafka-topics.sh --describe --under-replicated")


def _min_in_sync(subject: KafkaSubject) -> Finding:
    return _few_in_sync(subject.present_topics) or ok(
        f"min.insync.replicas is {IN_SYNC_WANTED} or more, with one to spare"
    )


def _unclean(subject: KafkaSubject) -> Finding:
    text = "unclean.leader.election.enable is true on {names}: a replica that lacks records may become the leader"
    return _where(
        subject.present_topics, "unclean.leader.election.enable", lambda value: value != "false", "false", text
    ) or ok("only replicas in sync become leaders")


def _timestamps(subject: KafkaSubject) -> Finding:
    text = "message.timestamp.type is {value} on {names}: ages would follow the producers' clocks"
    return _where(
        _logs(subject), "message.timestamp.type", lambda value: value != "LogAppendTime", "LogAppendTime", text
    ) or ok("half and op records carry the broker's time")


def _cleanup(subject: KafkaSubject) -> Finding:
    text = "cleanup.policy is {value} on {names}: compaction takes records that are still needed"
    return _where(_logs(subject), "cleanup.policy", lambda value: value != "delete", "delete", text) or ok(
        "half, op and parked topics are not compacted"
    )


def _retention(subject: KafkaSubject) -> Finding:
    half, op = (subject.own_topics[topic_name(subject.request.group, kind)] for kind in (LogKind.HALF, LogKind.OP))
    assert half is not None
    assert op is not None  # kafka.topics was OK
    bounded = _where(
        _logs(subject),
        "retention.bytes",
        lambda value: value != "-1",
        "-1",
        "retention.bytes is {value} on {names}: a burst drops pending halves",
    )
    if bounded:
        return bounded
    half_s, op_s = _retention_s(half), _retention_s(op)
    wanted_s = subject.request.retention_s
    if half_s < wanted_s:
        text = (
            f"{half.name} keeps {duration(half_s)}, less than twice the check horizon of "
            f"{duration(subject.request.horizon_s)}"
        )
        return fail(text, _alter([half], "retention.ms", str(round(wanted_s * 1000))))
    if op_s < half_s:
        text = f"{op.name} keeps {duration(op_s)}, {half.name} {duration(half_s)}: finished halves would look undecided"
        return fail(text, _alter([op], "retention.ms", "-1" if half_s == float("inf") else str(round(2000 * half_s))))
    return ok(f"halves are kept {_kept(half_s)}, ops {_kept(op_s)}")


def _message_size(subject: KafkaSubject) -> Finding:
    wanted = max(subject.options.record_bytes_max, subject.request.body_size)
    small = [view for view in subject.present_topics if int(view.settings.get("max.message.bytes", wanted)) < wanted]
    if not small:
        return ok(f"the topics take records of {size(wanted)}")
    text = f"max.message.bytes is {small[0].settings['max.message.bytes']} on {_names(small)}, below {wanted}"
    return fail(
        f"{text}: large halves, or their parked copies, are refused", _alter(small, "max.message.bytes", str(wanted))
    )


# -- targets and Kafka's own topics -----------------------------------------------------------------------------------


def _targets(subject: KafkaSubject) -> Finding:
    missing = [name for name, view in subject.target_topics.items() if view is None]
    if missing:
        change = f"kafka-topics.sh --create --topic {missing[0]} --replication-factor 3 --config min.insync.replicas=2"
        return fail(f"targets do not exist: {shortened(missing)}", change)
    return ok(f"{counted(len(subject.target_topics), 'target')} found")


def _target_settings(subject: KafkaSubject) -> Finding:
    views = [view for view in subject.target_topics.values() if view is not None]
    wanted = subject.request.body_size
    small = [view for view in views if int(view.settings.get("max.message.bytes", wanted)) < wanted]
    if small:
        text = f"max.message.bytes is {small[0].settings['max.message.bytes']} on {_names(small)}, below {wanted}"
        return fail(f"{text}: such messages are refused", _alter(small, "max.message.bytes", str(wanted)))
    text = "unclean.leader.election.enable is true on {names}: delivered messages may vanish"
    unclean = _where(views, "unclean.leader.election.enable", lambda value: value != "false", "false", text)
    return (
        _few_replicas(views)
        or _few_in_sync(views)
        or unclean
        or ok(f"as durable as the group: {counted(len(views), 'target')}")
    )


def _internal_topics(subject: KafkaSubject) -> Finding:
    names = {OFFSETS_TOPIC: "offsets.topic.replication.factor"}
    if subject.options.release == TRANSACTION:
        names[TRANSACTIONS_TOPIC] = "transaction.state.log.replication.factor"
    for name, setting in names.items():
        view = subject.topic(name)
        count = int(subject.broker_setting(setting) or 1) if view is None else view.replica_count
        if count < REPLICAS_WANTED:
            what = "transactions" if name == TRANSACTIONS_TOPIC else "the ownership of partitions"
            text = (
                f"{name} {'has' if view else 'will have'} {counted(count, 'replica')}: a lost broker takes {what} along"
            )
            judge = fail if name == TRANSACTIONS_TOPIC else warn
            change = f"{setting}=3 in server.properties before it is made, else {_reassign(name)}"
            return for_production(judge(text, change))
    return ok(f"{' and '.join(names)} have {REPLICAS_WANTED} or more replicas")


# -- shared by several checks -----------------------------------------------------------------------------------------


def _few_replicas(views: Sequence[TopicView]) -> Finding | None:
    few = [view for view in views if view.replica_count < REPLICAS_WANTED]
    if not few:
        return None
    text = f"replication factor {few[0].replica_count} on {_names(few)}: acknowledged records go with a broker's disk"
    change = f"{_reassign(few[0].name)} (for each); default.replication.factor=3 for new groups"
    return for_production(fail(text, change))


def _few_in_sync(views: Sequence[TopicView]) -> Finding | None:
    few = [view for view in views if int(view.settings.get("min.insync.replicas", 1)) < IN_SYNC_WANTED]
    if few:
        text = f"min.insync.replicas is {few[0].settings.get('min.insync.replicas')} on {_names(few)}"
        change = _alter(few, "min.insync.replicas", str(IN_SYNC_WANTED))
        return for_production(fail(f"{text}: what one broker has alone is acknowledged", change))
    tight = [view for view in views if int(view.settings.get("min.insync.replicas", 1)) >= view.replica_count]
    if tight:
        text = (
            f"min.insync.replicas equals the number of replicas on {_names(tight)}: any broker's absence stops writing"
        )
        return warn(text, _reassign(tight[0].name))
    return None


def _where(
    views: Iterable[TopicView], setting: str, is_wrong: Callable[[str], bool], right: str, text: str
) -> Finding | None:
    wrong = [view for view in views if setting in view.settings and is_wrong(view.settings[setting])]
    if not wrong:
        return None
    said = text.format(value=wrong[0].settings[setting], names=_names(wrong))
    return fail(said, _alter(wrong, setting, right))


def _logs(subject: KafkaSubject) -> list[TopicView]:
    names = [topic_name(subject.request.group, kind) for kind in LogKind]
    return [view for view in subject.present_topics if view.name in names]


def _retention_s(view: TopicView) -> float:
    value_ms = int(view.settings.get("retention.ms", "-1"))
    return float("inf") if value_ms < 0 else value_ms / 1000


def _kept(seconds: float) -> str:
    return "for ever" if seconds == float("inf") else f"for {duration(seconds)}"


def _names(views: Sequence[TopicView]) -> str:
    return shortened([view.name for view in views])


def _alter(views: Sequence[TopicView], setting: str, value: str) -> str:
    return f"{CONFIGURE} --topic {views[0].name} --add-config {setting}={value}" + (" (for each)" if views[1:] else "")


def _reassign(topic: str) -> str:
    return f"kafka-reassign-partitions.sh --execute, with three replicas for each partition of {topic}"


CHECKS: Final = (
    Check("kafka.client", "librdkafka is a version without known faults", _client),
    Check("kafka.version", "the brokers get fixes", _version),
    Check("kafka.brokers", "there are three brokers", _brokers),
    Check("kafka.encryption", "nothing is sent unprotected to another machine", doctor_exposure.encryption),
    Check("kafka.anonymous", "no client without credentials is accepted", doctor_exposure.anonymous),
    Check("kafka.racks", "brokers are not all in one rack", _racks),
    Check("kafka.auto-create", "topics are not made by asking for them", _auto_create),
    Check("kafka.session-timeout", "the brokers take the checkers' session timeout", _session_timeout),
    Check("kafka.transactions", "releases do not depend on the old transaction protocol", _transactions),
    Check("kafka.hanging-transactions", "a killed broker leaves no transaction open", _hanging),
    Check("kafka.internal-topics", "Kafka's own topics have three replicas", _internal_topics),
    Check("kafka.topics", "the group's topics exist, with equal partitions", _topics),
    Check(
        "kafka.rights", "this user has no more rights than its role needs", doctor_exposure.rights, needs="kafka.topics"
    ),
    Check("kafka.replicas", "they have three replicas", _replicas, needs="kafka.topics"),
    Check("kafka.in-sync", "all replicas are in sync", _in_sync, needs="kafka.topics"),
    Check("kafka.min-in-sync", "two replicas acknowledge, of more than two", _min_in_sync, needs="kafka.topics"),
    Check("kafka.unclean-election", "only replicas in sync become leaders", _unclean, needs="kafka.topics"),
    Check("kafka.timestamps", "records carry the broker's time", _timestamps, needs="kafka.topics"),
    Check("kafka.cleanup", "logs are not compacted", _cleanup, needs="kafka.topics"),
    Check(
        "kafka.retention", "halves are kept for twice the check horizon, ops longer", _retention, needs="kafka.topics"
    ),
    Check("kafka.message-size", "the topics take the largest record", _message_size, needs="kafka.topics"),
    Check("kafka.targets", "targets exist", _targets),
    Check(
        "kafka.target-settings",
        "they are as durable as the group, and take the largest body",
        _target_settings,
        needs="kafka.targets",
    ),
)
