"""The doctor's questions to Kafka: metadata and settings, with the driver's admin client; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined] # it lists no names of its own
    AclOperation,
    AdminClient,
    ConfigResource,
    ResourceType,
)

from txcore.errors import BackendUnavailableError
from txcore.findings import Request, UntoldError
from txcore_kafka.codec import is_forbidden, is_missing
from txcore_kafka.options import Options, is_own_topic, topic_settings

TIMEOUT_S: Final = 10.0
ANONYMOUS_TIMEOUT_S: Final = 3.0
"""Wait, in seconds, for a broker to serve a client without credentials; a refused client only sees connections end."""
CREDENTIALS: Final = ("sasl.", "ssl.certificate.", "ssl.key.")
"""Beginnings of the driver's settings that hold credentials."""
OTHER_TOPICS_MAX: Final = 100
CHANGING: Final = {AclOperation.ALTER, AclOperation.ALTER_CONFIGS, AclOperation.DELETE}
USING: Final = CHANGING | {AclOperation.READ, AclOperation.WRITE}
LOGIN_ERRORS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - the driver's names for its own errors begin so
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic: its partitions, their smallest number of replicas, and how many lack a replica or a leader."""

    name: str
    partition_count: int
    replica_count: int
    lagging: int
    leaderless: int
    settings: Mapping[str, str]


@dataclass
class KafkaSubject:
    """One cluster and one group on it. Each answer is remembered."""

    options: Options
    request: Request
    errors: list[KafkaError] = field(default_factory=list)

    @cached_property
    def admin(self) -> Any:
        """The admin client."""
        return AdminClient(self.options.connection() | {"error_cb": self.errors.append})

    def connect(self) -> None:
        """Check that the cluster answers.

        Raises:
            BackendUnavailableError: the cluster does not answer, or refuses certificate, user or password.
        """
        try:
            _ = self.metadata
        except KafkaException as error:
            self.admin.poll(0)  # passes on the errors of connections
            refusals = [each for each in self.errors if each.code() in LOGIN_ERRORS]
            said = (refusals or [*self.errors, error.args[0]])[0].str()
            what = "refuses the login or the certificate" if refusals else "cannot be reached"
            raise BackendUnavailableError(f"Kafka at {self.options.servers} {what}: {said}") from error

    @cached_property
    def metadata(self) -> Any:
        """Brokers and topics."""
        return self.admin.list_topics(timeout=TIMEOUT_S)

    @cached_property
    def nodes(self) -> Sequence[Any]:
        """The brokers, with their racks."""
        return list(self.admin.describe_cluster(request_timeout=TIMEOUT_S).result(2 * TIMEOUT_S).nodes)

    @cached_property
    def broker_settings(self) -> Mapping[str, str]:
        """The settings of one broker.

        Raises:
            UntoldError: this user may not read them.
        """
        number = str(min(self.metadata.brokers))
        return self._settings(ConfigResource(ResourceType.BROKER, number), "--cluster")

    @property
    def hosts(self) -> set[str]:
        """The hosts of the URL, and those that the brokers report."""
        named = {host for host, _ in (server.rsplit(":", 1) for server in self.options.servers.split(","))}
        return {each.strip("[]") for each in named} | {broker.host for broker in self.metadata.brokers.values()}

    def accepts_anonymous(self) -> bool:
        """Return whether the cluster serves a client without user and certificate."""
        config = self.options.connection()
        bare = {name: value for name, value in config.items() if not name.startswith(CREDENTIALS)}
        if bare == config:
            return True  # as the doctor itself
        bare["security.protocol"] = "SSL" if self.options.is_encrypted else "PLAINTEXT"
        try:
            AdminClient(bare | {"error_cb": lambda _: None}).list_topics(timeout=ANONYMOUS_TIMEOUT_S)
        except KafkaException:
            return False
        return True

    def excess_rights(self) -> dict[str, list[str]]:
        """Return topic -> this user's rights that no role needs: to change its own topics, to use another group's.

        Raises:
            UntoldError: the broker does not report the rights.
        """
        own = [view.name for view in self.present_topics]
        other = [name for name in self.metadata.topics if is_own_topic(name) and name not in own and name[0] != "_"]
        request = self.admin.describe_topics(
            TopicCollection([*own, *other[:OTHER_TOPICS_MAX]]),
            include_authorized_operations=True,
            request_timeout=TIMEOUT_S,
        )
        found = {}
        for topic, answer in request.items():
            try:
                rights = answer.result(2 * TIMEOUT_S).authorized_operations
            except KafkaException as error:
                if is_forbidden(error) or is_missing(error):
                    continue
                raise UntoldError(error.args[0].str()) from error
            harmful = sorted(each.name for each in set(rights or ()) & (CHANGING if topic in own else USING))
            if harmful:
                found[topic] = harmful
        return found

    def broker_setting(self, name: str) -> str:
        """Return one setting of the brokers, "" for none."""
        return str(self.broker_settings.get(name) or "")

    def topic(self, name: str) -> TopicView | None:
        """Return one topic, or None when it does not exist.

        Raises:
            UntoldError: this user may not see the topic.
        """
        found = self.metadata.topics.get(name)
        if found is None or (found.error is not None and is_missing(found.error)):
            return None
        if found.error is not None:
            raise UntoldError(found.error.str(), _grant(f"--topic {name}"))
        partitions = list(found.partitions.values())
        return TopicView(
            name,
            len(partitions),
            min(len(each.replicas) for each in partitions),
            sum(len(each.isrs) < len(each.replicas) for each in partitions),
            sum(each.leader < 0 for each in partitions),
            self._settings(ConfigResource(ResourceType.TOPIC, name), f"--topic {name}"),
        )

    @cached_property
    def own_topics(self) -> dict[str, TopicView | None]:
        """The topics that the group should have."""
        return {name: self.topic(name) for name in topic_settings(self.options, self.request.group)}

    @property
    def present_topics(self) -> list[TopicView]:
        """Those of the group's topics that exist."""
        return [view for view in self.own_topics.values() if view is not None]

    @cached_property
    def target_topics(self) -> dict[str, TopicView | None]:
        """The topics that the doctor was asked to look at.

        Raises:
            UntoldError: the request names no topic.
        """
        if not self.request.targets:
            raise UntoldError("no target was named", "--target TOPIC, once for each")
        return {name: self.topic(name) for name in self.request.targets}

    def _settings(self, resource: Any, place: str) -> Mapping[str, str]:
        (answer,) = self.admin.describe_configs([resource], request_timeout=TIMEOUT_S).values()
        try:
            return {name: entry.value for name, entry in answer.result(2 * TIMEOUT_S).items()}
        except KafkaException as error:
            if is_forbidden(error):
                raise UntoldError(error.args[0].str(), _grant(place)) from error
            raise UntoldError(error.args[0].str()) from error


def _grant(place: str) -> str:
    return f"kafka-acls.sh --add --allow-principal User:NAME --operation DescribeConfigs --operation Describe {place}"
