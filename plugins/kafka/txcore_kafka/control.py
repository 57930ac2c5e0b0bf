"""The topics of groups: creating, verifying and describing them. Every call here blocks, on a worker's thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined] # it lists no names of its own
    ConfigResource,
    NewTopic,
    ResourceType,
)

from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError, TxcoreError
from txcore.records import LogKind
from txcore_kafka.clients import ConnectionNews, make_admin
from txcore_kafka.codec import exists_already, is_missing, is_unreadable, translated
from txcore_kafka.options import (
    GROUP_NAME_SIZE_MAX,
    PARTITION_COUNT_MAX,
    TOPIC_NAME,
    Options,
    checkpoint_topic,
    topic_name,
    topic_settings,
)

SETTLE_POLL_S: Final = 0.05
SWEEP_SETTING: Final = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
TIMEOUT_SETTING: Final = "transaction.max.timeout.ms"
EXACT: Final = ("cleanup.policy", "message.timestamp.type", "retention.bytes")
AT_LEAST: Final = ("retention.ms", "max.message.bytes")


class Control:
    """The admin client and the known groups. `partition_counts` may be read on any thread."""

    def __init__(self, options: Options, clock: Clock, news: ConnectionNews) -> None:
        self._options = options
        self._clock = clock
        self._news = news
        self._admin: Any = None
        self.partition_counts: dict[str, int] = {}

    @property
    def admin(self) -> Any:
        """The driver's admin client, made with the first request."""
        if self._admin is None:
            self._admin = make_admin(self._options.connection())
        return self._admin

    def _translated(self, error: KafkaException, what: str) -> TxcoreError:
        """Return txcore's error; a timeout gives the reason why no broker answered, if the driver knows it."""
        ours = translated(error, what)
        if isinstance(ours, BackendTimeoutError | BackendUnavailableError) and self._news.refusal is not None:
            ours = BackendUnavailableError(f"{ours}; the last connection was refused: {self._news.refusal.str()}")
        return ours

    def ensure_group(self, group: str, asked: int | None) -> int:
        """Create or verify the group's topics; return its number of partitions.

        Raises:
            ConfigError: the name cannot be part of a topic's name, or a topic, number or setting is not as required.
            BackendUnavailableError, BackendTimeoutError: the broker gave no answer.
        """
        if not TOPIC_NAME.fullmatch(group) or len(group) > GROUP_NAME_SIZE_MAX:
            text = f"a group on Kafka has a name of letters, digits, '.', '_' and '-', not {group!r}"
            raise ConfigError(text, key="group")
        if asked is not None and not 1 <= asked <= PARTITION_COUNT_MAX:
            raise ConfigError(f"a group has 1 to {PARTITION_COUNT_MAX} partitions, not {asked}", key="partition_count")
        settings = topic_settings(self._options, group)
        half = topic_name(group, LogKind.HALF)
        if self._options.is_transactional:
            self._verify_broker()
        found = self.counts(list(settings))
        if half not in found:
            self._make(settings, found, asked or next(iter(found.values()), self._options.partitions))
            found = self._await_topics(list(settings))
        missing = sorted(settings.keys() - found.keys())
        if missing:
            text = f"group {group!r} has lost {', '.join(missing)}; make them anew or use another group"
            raise ConfigError(text, key="group")
        count = found[half]
        self._verify(group, found, asked, settings)
        self.partition_counts[group] = count
        return count

    def partition_count(self, group: str) -> int:
        """Return a group's number of partitions.

        Raises:
            ConfigError: the group was not made.
        """
        known = self.partition_counts.get(group)
        if known is not None:
            return known
        half = topic_name(group, LogKind.HALF)
        count = self.counts([half]).get(half) if TOPIC_NAME.fullmatch(half) else None
        if count is None:
            raise ConfigError(f"there is no group {group!r}; ensure_group makes it", key="group")
        self.partition_counts[group] = count
        return count

    def counts(self, topics: list[str]) -> dict[str, int]:
        """Return topic -> number of partitions; topics that do not exist are missing from the result."""
        found = {}
        request = self.admin.describe_topics(TopicCollection(topics), request_timeout=self._options.control_timeout_s)
        for topic, answer in request.items():
            try:
                described = answer.result(2 * self._options.control_timeout_s)
            except KafkaException as error:
                if not is_missing(error):
                    raise self._translated(error, f"looking for topic {topic!r}") from error
            else:
                found[topic] = len(described.partitions)
        return found

    def settings(self, topics: list[str]) -> dict[str, Mapping[str, str]]:
        """Return topic -> settings in force; topics that are missing or may not be described have none."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        return {topic: found for topic, found in zip(topics, self._described(resources), strict=True) if found}

    def _described(self, resources: Sequence[Any]) -> list[Mapping[str, str]]:
        found: list[Mapping[str, str]] = []
        request = self.admin.describe_configs(list(resources), request_timeout=self._options.control_timeout_s)
        for resource in resources:
            try:
                entries = request[resource].result(2 * self._options.control_timeout_s)
            except KafkaException as error:
                if not is_missing(error) and not is_unreadable(error):
                    raise self._translated(error, f"reading the settings of {resource.name!r}") from error
                found.append({})
            else:
                found.append({name: entry.value for name, entry in entries.items()})
        return found

    def _verify_broker(self) -> None:
        """Verify that the broker ends abandoned transactions as soon as the URL says, if it reports its settings."""
        brokers = self.admin.list_topics(timeout=self._options.control_timeout_s).brokers
        if not brokers:
            return
        (found,) = self._described([ConfigResource(ResourceType.BROKER, str(min(brokers)))])
        sweep_s, timeout_s = self._options.transaction_sweep_s, self._options.transaction_timeout_s
        if float(found.get(SWEEP_SETTING, 0)) > sweep_s * 1000:
            text = f"the broker has {SWEEP_SETTING}={found[SWEEP_SETTING]}; set transaction_sweep_s to it, in seconds"
            raise ConfigError(text, key="transaction_sweep_s")
        if float(found.get(TIMEOUT_SETTING, "inf")) < timeout_s * 1000:
            text = f"the broker has {TIMEOUT_SETTING}={found[TIMEOUT_SETTING]}, less than transaction_timeout_s"
            raise ConfigError(text, key="transaction_timeout_s")

    def _make(self, settings: Mapping[str, Mapping[str, str]], found: Mapping[str, int], count: int) -> None:
        *others, half = settings
        for topics in ([each for each in others if each not in found], [half]):
            self._create(
                [
                    NewTopic(
                        topic,
                        num_partitions=count,
                        replication_factor=self._options.replication_factor,
                        config=dict(settings[topic]),
                    )
                    for topic in topics
                ]
            )

    def _create(self, topics: list[Any]) -> None:
        if not topics:
            return
        request = self.admin.create_topics(topics, request_timeout=self._options.control_timeout_s)
        for topic, answer in request.items():
            try:
                answer.result(2 * self._options.control_timeout_s)
            except KafkaException as error:
                if not exists_already(error):
                    raise self._translated(error, f"making topic {topic!r}") from error

    def _await_topics(self, topics: list[str]) -> dict[str, int]:
        """Wait until the broker that answers knows the created topics."""
        deadline_s = self._clock.elapsed_s() + self._options.control_timeout_s
        while True:
            found = self.counts(topics)
            if len(found) == len(topics):
                return found
            if self._clock.elapsed_s() > deadline_s:
                missing = ", ".join(sorted(set(topics) - found.keys()))
                raise BackendTimeoutError(f"{missing} did not appear within {self._options.control_timeout_s:g} s")
            threading.Event().wait(SETTLE_POLL_S)

    def _verify(
        self,
        group: str,
        found: Mapping[str, int],
        asked: int | None,
        settings: Mapping[str, Mapping[str, str]],
    ) -> None:
        count = found[topic_name(group, LogKind.HALF)]
        if asked is not None and asked != count:
            text = f"group {group!r} has {count} partitions, not {asked}; the number never changes"
            raise ConfigError(text, key="partition_count")
        wrong = [f"{topic} has {each} partitions, not {count}" for topic, each in found.items() if each != count]
        if wrong:
            raise ConfigError(f"group {group!r} is unusable: {'; '.join(wrong)}", key="partition_count")
        needed = {
            topic: dict(wanted) | {"max.message.bytes": str(self._options.record_bytes_max)}
            for topic, wanted in settings.items()
        }
        in_force = self.settings(list(settings))
        keys: list[str] = []
        for topic, wanted in needed.items():
            for key, value in in_force.get(topic, {}).items():
                if _differs(key, value, wanted):
                    keys.append(key)
                    at_least = "at least " if key in AT_LEAST else ""
                    wrong.append(f"{topic} has {key}={value} and needs {at_least}{wanted[key]}")
        if wrong:
            raise ConfigError(f"group {group!r} has other settings: {'; '.join(wrong)}", key=keys[0])


def _differs(key: str, value: str, wanted: Mapping[str, str]) -> bool:
    if key not in wanted:
        return False
    if key in EXACT:
        return value != wanted[key]
    if key not in AT_LEAST or value == "-1":
        return False
    return wanted[key] == "-1" or int(value) < int(wanted[key])


def group_topics(group: str) -> tuple[str, ...]:
    """Return the names of all topics of a group."""
    return (*(topic_name(group, kind) for kind in LogKind), checkpoint_topic(group))
