"""`txcore doctor` on RabbitMQ: facts from AMQP, and from the management API if its URL is given.

Source: RabbitMQ documentation, "Streams", "Quorum Queues", "Clustering and Network Partitions", "Memory and Disk
Alarms", "Negotiating limits" (`max_message_size`, `frame_max`), HTTP API.
"""

from __future__ import annotations

from typing import Final

import pika  # type: ignore[import-untyped]
from pika import exceptions

from txcore.backends.exposure import anonymous_finding, encryption_finding
from txcore.errors import MessageRejectedError
from txcore.findings import (
    Check,
    Examination,
    Finding,
    Request,
    UntoldError,
    counted,
    fail,
    for_production,
    ok,
    shortened,
    size,
    version_of,
    warn,
)
from txcore.records import RECORD_OVERHEAD_MAX, LogKind
from txcore_rabbitmq.codec import different_setting, is_forbidden, parse_topic
from txcore_rabbitmq.doctor_access import RabbitmqSubject
from txcore_rabbitmq.names import AGE_ARGUMENT, HEADERS_BYTES_MAX, log_name
from txcore_rabbitmq.options import Options

VERSION_OLDEST: Final = "3.10"
VERSION_KEPT: Final = "4.0"
CLIENT_OLDEST: Final = "1.3.2"
NODES_WANTED: Final = 3
HEARTBEAT_MAX_S: Final = 13
"""Longest heartbeat, in seconds: a frozen owner is noticed after about three, which should be within 40 s."""
DISK_LIMIT_WANTED: Final = 1_000_000_000
DURABLE_TYPES: Final = frozenset({"quorum", "stream"})


def rabbitmq_examination(options: Options, request: Request) -> Examination[RabbitmqSubject]:
    """Connect and return the checks.

    Raises:
        BackendUnavailableError: the broker cannot be reached, or refuses the credentials.
    """
    subject = RabbitmqSubject(options, request)
    subject.connect()
    return Examination(CHECKS, subject, subject.close)


# -- over AMQP ----------------------------------------------------------------------------------------------------


def _version(subject: RabbitmqSubject) -> Finding:
    version = subject.server_version
    if version_of(version) < version_of(VERSION_OLDEST):
        return fail(f"RabbitMQ {version} is older than {VERSION_OLDEST}", f"upgrade to {VERSION_KEPT} or later")
    if version_of(version) < version_of(VERSION_KEPT):
        text = f"RabbitMQ {version} gets no fixes any more; before 4.0 crashes were seen to damage stream indexes"
        return warn(text, f"upgrade to {VERSION_KEPT} or later")
    return ok(f"RabbitMQ {version}")


def _client(_subject: RabbitmqSubject) -> Finding:
    version = str(pika.__version__)
    if not version_of(CLIENT_OLDEST) <= version_of(version) < (2,):
        return fail(f"pika {version} was not tried", f'pip install "pika>={CLIENT_OLDEST},<2"')
    return ok(f"pika {version}")


def _encryption(subject: RabbitmqSubject) -> Finding:
    options = subject.options
    return encryption_finding(
        [host for host, _ in options.hosts],
        is_encrypted=options.is_encrypted,
        is_verified=options.tls_verify,
        sent=f"messages and the password of {options.user!r}",
        change="tls=true and tls_ca=FILE in the URL, and listeners.ssl.default in rabbitmq.conf",
    )


def _anonymous(subject: RabbitmqSubject) -> Finding:
    login = "the user guest with its default password" if subject.accepts_guest() else ""
    change = "rabbitmqctl delete_user guest, after a user for each role; txcore permissions prints them"
    return anonymous_finding([host for host, _ in subject.options.hosts], login, change)


def _rights(subject: RabbitmqSubject) -> Finding:
    rights = subject.foreign_rights()
    if not rights:
        return ok("this user has no rights in other groups")
    text = f"this user may {', '.join(rights)} what is another group's, in vhost {subject.options.vhost!r}"
    change = f"rabbitmqctl set_permissions {subject.options.user}, with the patterns that `txcore permissions` prints"
    return for_production(warn(text, change))


def _heartbeat(subject: RabbitmqSubject) -> Finding:
    claim_s, other_s = subject.options.claim_heartbeat_s, subject.options.heartbeat_s
    text = f"heartbeats: {other_s} s, of claims {claim_s} s"
    change = "claim_heartbeat_s=5&heartbeat_s=10 in the backend's URL"
    if claim_s > HEARTBEAT_MAX_S:
        return warn(f"{text}: a frozen checker is replaced only after about {3 * claim_s} s", change)
    return ok(text)


def _frame_max(subject: RabbitmqSubject) -> Finding:
    frame_max = subject.frame_max
    wanted = 2 * HEADERS_BYTES_MAX
    if 0 < frame_max < wanted:
        text = f"frame_max is {size(frame_max)}: a message whose headers need more costs the whole connection"
        return fail(text, f"frame_max = {wanted} in rabbitmq.conf (0 for no limit)")
    return ok(f"frame_max is {size(frame_max)}")


def _alarm(subject: RabbitmqSubject) -> Finding:
    with subject.channel() as channel:
        channel.confirm_delivery()
        try:
            subject.publish_nowhere(channel, b"")
            subject.publish_nowhere(channel, b"")  # a connection is blocked only after it has published
        except exceptions.ConnectionBlockedTimeout:
            return fail(
                "the broker blocks publishers: a memory or disk alarm is on",
                "free memory or disk; see: rabbitmq-diagnostics alarms; disk_free_limit, vm_memory_high_watermark",
            )
    return ok("publishers are not blocked")


def _message_size(subject: RabbitmqSubject) -> Finding:
    record = max(subject.options.body_size_max, subject.request.body_size) + RECORD_OVERHEAD_MAX
    with subject.channel() as channel:
        channel.confirm_delivery()
        try:
            subject.publish_nowhere(channel, bytes(record))
        except exceptions.ChannelClosedByBroker as error:
            if is_forbidden(error):
                raise UntoldError(error.reply_text) from error
            return fail(
                f"a record of {size(record)} is refused: {error.reply_text}",
                f"max_message_size = {record} or more in rabbitmq.conf, or a smaller body_size_max in the URL",
            )
    return ok(f"records of {size(record)} are taken (body_size_max and the protocol's own fields)")


def _streams(subject: RabbitmqSubject) -> Finding:
    group = subject.request.group
    if not subject.partition_count:
        return fail(
            f"group {group!r} has no streams in vhost {subject.options.vhost!r}",
            f"txcore topics create --broker URL --group {group}",
        )
    missing = [name for name in subject.streams if not subject.exists(name)]
    if missing:
        text = f"{len(missing)} of {len(subject.streams)} streams are missing: {shortened(missing)}"
        return fail(f"{text}; what they held is lost", "restart a producer of the group: it makes them again")
    if subject.missing_exchanges:
        text = f"missing: exchange {shortened(subject.missing_exchanges)}; nothing can be published to the streams"
        return fail(text, "txcore topics create, under a user that may create")
    return ok(f"{len(subject.streams)} streams of {counted(subject.partition_count, 'partition')} are there")


def _arguments(subject: RabbitmqSubject) -> Finding:
    parked = _parked_names(subject)
    different = [
        refused
        for name, refused in _refused_arguments(subject).items()
        if name not in parked or different_setting(refused) != AGE_ARGUMENT
    ]
    if different:
        return fail(
            f"{len(different)} streams were made with other arguments: {different[0].reply_text}",
            "the option of the backend's URL with which the group was made, or a new group: arguments are fixed",
        )
    return ok("all streams have the arguments of the URL's options")


def _parked(subject: RabbitmqSubject) -> Finding:
    parked, refused = _parked_names(subject), _refused_arguments(subject)
    names = [name for name in refused if name in parked and different_setting(refused[name]) == AGE_ARGUMENT]
    if names:
        return fail(
            f"parked records expire: {shortened(names)} with {AGE_ARGUMENT} "
            f"({counted(len(names), 'stream')}, made before 0.1); queue arguments are fixed",
            f"resume or end what `txcore parked` lists, then: rabbitmqctl delete_queue {names[0]}; "
            "the start of a producer makes it again, without an age",
        )
    return ok("parked records never expire")


def _parked_names(subject: RabbitmqSubject) -> set[str]:
    return {log_name(subject.request.group, LogKind.PARKED, each) for each in range(subject.partition_count)}


def _refused_arguments(subject: RabbitmqSubject) -> dict[str, exceptions.ChannelClosedByBroker]:
    """Declare the existing streams, so that the broker only compares arguments; return the refusals by stream."""
    refused = {}
    for name, arguments in subject.streams.items():
        with subject.channel() as channel:
            try:
                channel.queue_declare(name, durable=True, arguments=arguments)
            except exceptions.ChannelClosedByBroker as error:
                if is_forbidden(error):
                    raise UntoldError(error.reply_text, "run the doctor under a user that may create") from error
                refused[name] = error
    return refused


def _targets(subject: RabbitmqSubject) -> Finding:
    if not subject.request.targets:
        raise UntoldError("no target was named", "--target TOPIC, once for each")
    trouble, wanting = [], []
    for topic in subject.request.targets:
        try:
            exchange, key = parse_topic(topic)
        except MessageRejectedError as error:
            trouble.append(str(error))
            continue
        if not subject.exists(exchange or key, is_exchange=bool(exchange)):
            wanting.append(f"exchange {exchange!r}" if exchange else f"queue {key!r}")
    if trouble or wanting:
        change = "rabbitmqadmin declare queue name=… durable=true queue_type=quorum (exchange: type=topic), and bind it"
        return fail("; ".join([*trouble, *(f"{name} does not exist" for name in wanting)]), change)
    return ok(f"{counted(len(subject.request.targets), 'target')} found")


# -- over the management API ----------------------------------------------------------------------------------------


def _management(subject: RabbitmqSubject) -> Finding:
    overview = subject.managed("overview")
    return ok(f"the management API answers for {overview.get('cluster_name', 'the cluster')}")


def _nodes(subject: RabbitmqSubject) -> Finding:
    nodes = subject.managed("nodes")
    running = [node["name"] for node in nodes if node.get("running")]
    down = [node["name"] for node in nodes if not node.get("running")]
    if down:
        return fail(
            f"{len(down)} of {len(nodes)} nodes are down: {shortened(down)}", "start them: rabbitmqctl start_app"
        )
    if len(running) < NODES_WANTED:
        return for_production(
            fail(
                f"{counted(len(running), 'node')}: streams are never synced to disk, so a power failure loses halves",
                "rabbitmqctl join_cluster rabbit@first on two more machines, then rabbitmq-streams add_replica",
            )
        )
    return ok(f"{len(running)} nodes run")


def _replicas(subject: RabbitmqSubject) -> Finding:
    queues = subject.managed_queues(list(subject.streams))
    few = [name for name, queue in queues.items() if len(queue.get("members", [])) < NODES_WANTED]
    offline = [name for name, queue in queues.items() if set(queue.get("members", [])) - set(queue.get("online", []))]
    if few:
        text = f"fewer than {NODES_WANTED} replicas: {len(few)} of {len(queues)} streams ({shortened(few)})"
        return for_production(
            fail(text, f"rabbitmq-streams add_replica {few[0]} rabbit@other (for each stream and node)")
        )
    if offline:
        text = f"{len(offline)} of {len(queues)} streams have replicas that are offline: {shortened(offline)}"
        return fail(text, f"rabbitmq-streams restart_stream {offline[0]}; and see the log of the node that lacks")
    return ok(f"all {len(queues)} streams have {NODES_WANTED} or more replicas, all online")


def _policies(subject: RabbitmqSubject) -> Finding:
    harmful: list[tuple[str, str, str]] = []
    for name, queue in subject.managed_queues(list(subject.streams)).items():
        keys = {"max-age", "max-length-bytes"} & set(queue.get("effective_policy_definition") or {})
        policy = str(queue.get("policy") or queue.get("operator_policy"))
        harmful.extend((name, key, policy) for key in sorted(keys))
    if not harmful:
        return ok("no policy shortens the streams' retention")
    name, key, policy = harmful[0]
    count = len({other for other, _, _ in harmful})
    text = f"policy {policy!r} sets {key} on {count} streams ({name}): halves may go early"
    return fail(text, f"rabbitmqctl clear_policy -p {subject.options.vhost} {policy}, or a pattern without ^txc\\.")


def _disk_limit(subject: RabbitmqSubject) -> Finding:
    low = [node for node in subject.managed("nodes") if int(node.get("disk_free_limit", 0)) < DISK_LIMIT_WANTED]
    if low:
        text = f"disk_free_limit is {size(int(low[0]['disk_free_limit']))} on {low[0]['name']}"
        text += ": the disk is full before publishers are stopped"
        return for_production(warn(text, "disk_free_limit.absolute = 2GB in rabbitmq.conf"))
    return ok("disk_free_limit stops publishers before the disk is full")


def _network_partitions(subject: RabbitmqSubject) -> Finding:
    nodes = subject.managed("nodes")
    split = [node["name"] for node in nodes if node.get("partitions")]
    if split:
        return fail(f"the cluster is split: {shortened(split)} see others as gone", "restart the smaller part's nodes")
    flags = {flag["name"]: flag["state"] for flag in subject.managed("feature-flags")}
    if len(nodes) > 1 and flags.get("khepri_db") != "enabled":
        return warn(
            "metadata is not in Khepri, so a split's effect depends on cluster_partition_handling, which no API shows",
            "rabbitmqctl enable_feature_flag khepri_db (4.0 and later), or cluster_partition_handling = pause_minority",
        )
    return ok("no node sees the cluster split")


def _target_queues(subject: RabbitmqSubject) -> Finding:
    names = [target.routing_key for topic in subject.request.targets if not (target := parse_topic(topic)).exchange]
    if not names:
        return ok("no target is a queue of its own")
    queues = subject.managed_queues(names)
    if len(queues) < len(names):
        raise UntoldError(f"{len(names) - len(queues)} of {len(names)} do not exist", "make them; see rabbitmq.targets")
    weak = [(name, queue["type"]) for name, queue in queues.items() if queue.get("type") not in DURABLE_TYPES]
    if weak:
        name, kind = weak[0]
        names = [other for other, _ in weak]
        text = (
            f"{counted(len(weak), 'target queue')} of type {kind} ({shortened(names)}): confirmed unsynced, on one node"
        )
        return fail(text, f"a queue declared with x-queue-type=quorum in place of {name}")
    few = [name for name, queue in queues.items() if len(queue.get("members", [])) < NODES_WANTED]
    if few:
        text = f"fewer than {NODES_WANTED} replicas: {counted(len(few), 'target queue')} ({shortened(few)})"
        return for_production(fail(text, f"rabbitmq-queues add_member {few[0]} rabbit@other"))
    return ok(f"replicated: {counted(len(queues), 'target queue')}")


CHECKS: Final = (
    Check("rabbitmq.version", "the server is one that gets fixes", _version),
    Check("rabbitmq.client", "pika is a version that was tried", _client),
    Check("rabbitmq.encryption", "nothing is sent unprotected to another machine", _encryption),
    Check("rabbitmq.anonymous", "no user has a password that everyone knows", _anonymous),
    Check("rabbitmq.rights", "this user has no rights in other groups", _rights),
    Check("rabbitmq.heartbeat", "heartbeats notice a frozen peer in time", _heartbeat),
    Check("rabbitmq.frame-max", "a frame holds all headers of a message", _frame_max),
    Check("rabbitmq.alarm", "publishers are not blocked", _alarm),
    Check("rabbitmq.message-size", "the largest record is taken", _message_size, needs="rabbitmq.alarm"),
    Check("rabbitmq.streams", "the group has its exchanges and streams", _streams),
    Check("rabbitmq.arguments", "they have the arguments of the URL's options", _arguments, needs="rabbitmq.streams"),
    Check("rabbitmq.parked", "parked records never expire", _parked, needs="rabbitmq.streams"),
    Check("rabbitmq.targets", "targets exist", _targets),
    Check("rabbitmq.management", "the management API answers", _management),
    Check("rabbitmq.nodes", "three nodes run", _nodes, needs="rabbitmq.management"),
    Check("rabbitmq.replicas", "each stream has three replicas online", _replicas, needs="rabbitmq.management"),
    Check("rabbitmq.policies", "no policy shortens the streams' retention", _policies, needs="rabbitmq.management"),
    Check(
        "rabbitmq.disk-limit",
        "publishers are stopped before the disk is full",
        _disk_limit,
        needs="rabbitmq.management",
    ),
    Check(
        "rabbitmq.partitions",
        "the cluster is not split, and survives a split",
        _network_partitions,
        needs="rabbitmq.management",
    ),
    Check(
        "rabbitmq.target-queues",
        "target queues are quorum queues or streams, with three replicas",
        _target_queues,
        needs="rabbitmq.management",
    ),
)
