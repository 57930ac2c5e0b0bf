"""The topics of groups: creating, verifying and describing them. Every call here blocks, on a worker's thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined] # it lists no names of its own
    AclOperation,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from txcore.backends import exit_flush as exiting
from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError, TxcoreError
from txcore.port import failed, running
from txcore.records import LogKind
from txcore_kafka.clients import ConnectionNews, make_admin
from txcore_kafka.codec import CURE, exists_already, is_forbidden, is_missing, translated
from txcore_kafka.options import (
    PARTITION_COUNT_MAX,
    TOPIC_NAME,
    Options,
    check_group_name,
    topic_name,
    topic_settings,
)

SETTLE_POLL_S: Final = 0.05
SWEEP_SETTING: Final = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
TIMEOUT_SETTING: Final = "transaction.max.timeout.ms"
EXACT: Final = ("cleanup.policy", "message.timestamp.type", "retention.bytes")
AT_LEAST: Final = ("retention.ms", "max.message.bytes")


class Seen(NamedTuple):
    """The broker's answers about topics; those that do not exist are in neither part.

    Attributes:
        counts: Topic -> number of partitions.
        refusals: Topic -> the error that names the missing right, for topics that are hidden from this user too.
    """

    counts: dict[str, int]
    refusals: dict[str, TxcoreError]

    def require(self, *topics: str) -> None:
        """Raise the refusal of the first of *topics* that has one."""
        for topic in topics:
            if topic in self.refusals:
                raise self.refusals[topic]


class Control:
    """The admin client and the known groups. `partition_counts` may be read on any thread."""

    def __init__(self, options: Options, clock: Clock, news: ConnectionNews) -> None:
        self._options = options
        self._clock = clock
        self._news = news
        self._admin: Any = None
        self._is_doubtful = False  #: a request had no answer in time
        self.partition_counts: dict[str, int] = {}

    @property
    def admin(self) -> Any:
        """The driver's admin client; a new one for the first request, and after one without an answer.

        After a restart of the broker the driver may not find its controller for minutes; a new client asks anew.
        """
        if self._is_doubtful:
            former, self._admin, self._is_doubtful = [self._admin], None, False
            exiting.run_beside(former.clear, "txcore-kafka-end")
        if self._admin is None:
            self._admin = make_admin(self._options.connection())
        return self._admin

    def _translated(self, error: BaseException, what: str) -> TxcoreError:
        """Return txcore's error; without an answer it names the brokers, and the reason if the driver knows it."""
        ours = translated(error, what)
        if not isinstance(ours, BackendTimeoutError | BackendUnavailableError):
            return ours
        self._is_doubtful |= isinstance(ours, BackendTimeoutError)
        text = f"Kafka at {self._options.servers}: {ours}"
        if self._news.refusal is not None:
            return BackendUnavailableError(f"{text}; the last connection was refused: {self._news.refusal.str()}")
        return type(ours)(text)

    def ensure_group(self, group: str, asked: int | None) -> int:
        """Create or verify the group's topics; return its number of partitions.

        Raises:
            ConfigError: the name cannot be part of a topic's name, or a topic, number or setting is not as required.
            BackendUnavailableError, BackendTimeoutError: the broker gave no answer.
        """
        check_group_name(group)
        if asked is not None and not 1 <= asked <= PARTITION_COUNT_MAX:
            raise ConfigError(f"a group has 1 to {PARTITION_COUNT_MAX} partitions, not {asked}", key="partition_count")
        settings = topic_settings(self._options, group)
        half, op = topic_name(group, LogKind.HALF), topic_name(group, LogKind.OP)
        if self._options.is_transactional:
            self._verify_broker()
        seen = self.look(list(settings))
        seen.require(half, op)  # The others are hidden from a producer.
        if half not in seen.counts:
            self._make(settings, seen.counts, asked or next(iter(seen.counts.values()), self._options.partitions))
            seen = self._await_topics(list(settings))
        found = seen.counts
        missing = sorted(settings.keys() - found.keys() - seen.refusals.keys())
        if missing:
            text = f"group {group!r} has lost {', '.join(missing)}; make them anew or use another group"
            raise ConfigError(text, key="group")
        self._verify(group, found, asked, settings)
        # A user that only makes groups gets its number here, and `partition_count` refuses it.
        if not self.look([half, op], AclOperation.WRITE).refusals:
            self.partition_counts[group] = found[half]
        return found[half]

    def partition_count(self, group: str) -> int:
        """Return a group's number of partitions; called before the first use of its logs.

        Raises:
            ConfigError: the group was not made, or this user may not write its half and op logs, as every role must.
            BackendUnavailableError, BackendTimeoutError: the broker gave no answer.
        """
        known = self.partition_counts.get(group)
        if known is not None:
            return known
        half, op = topic_name(group, LogKind.HALF), topic_name(group, LogKind.OP)
        count = None
        if TOPIC_NAME.fullmatch(half):
            seen = self.look([half, op], AclOperation.WRITE)
            seen.require(half, op)
            count = seen.counts.get(half)
        if count is None:
            raise missing_group(group)
        self.partition_counts[group] = count
        return count

    def ping(self, group: str) -> Future[None]:
        """Ask the broker for the group's half topic; blocks no thread. See `Backend.ping`."""
        half, future = topic_name(group, LogKind.HALF), running()
        try:
            request = self.admin.describe_topics(
                TopicCollection([half]), request_timeout=self._options.control_timeout_s
            )
        except (KafkaException, TxcoreError) as error:
            return failed(self._translated(error, f"looking for topic {half!r}"))

        def answered(described: Future[Any]) -> None:
            error = described.exception()
            if error is None:
                future.set_result(None)
            elif is_missing(error):
                future.set_exception(missing_group(group))
            else:
                future.set_exception(self._translated(error, f"looking for topic {half!r}"))

        request[half].add_done_callback(answered)
        return future

    def look(self, topics: Sequence[str], *needed: AclOperation) -> Seen:
        """Return what the broker says of *topics*, and whether this user has the *needed* rights to them."""
        seen = Seen({}, {})
        request = self.admin.describe_topics(
            TopicCollection(list(topics)),
            include_authorized_operations=bool(needed),
            request_timeout=self._options.control_timeout_s,
        )
        for topic, answer in request.items():
            try:
                described = answer.result(2 * self._options.control_timeout_s)
            except KafkaException as error:
                if is_forbidden(error):
                    seen.refusals[topic] = translated(error, f"looking for topic {topic!r}")
                elif not is_missing(error):
                    raise self._translated(error, f"looking for topic {topic!r}") from error
            else:
                lacking = _lacking(described.authorized_operations, needed)
                if lacking:
                    text = f"the broker does not let this user {lacking} topic {topic!r}; {CURE}"
                    seen.refusals[topic] = ConfigError(text, key="url")
                else:
                    seen.counts[topic] = len(described.partitions)
        return seen

    def settings(self, topics: list[str]) -> dict[str, Mapping[str, str]]:
        """Return topic -> settings in force; topics that are missing or hidden from this user have none."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        return {topic: found for topic, found in zip(topics, self._described(resources), strict=True) if found}

    def _described(self, resources: Sequence[Any]) -> list[Mapping[str, str]]:
        found: list[Mapping[str, str]] = []
        request = self.admin.describe_configs(list(resources), request_timeout=self._options.control_timeout_s)
        for resource in resources:
            try:
                entries = request[resource].result(2 * self._options.control_timeout_s)
            except KafkaException as error:
                if not is_missing(error) and not is_forbidden(error):
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

    def check_checker(self, group: str) -> None:
        """Check that this user may read and write all topics of *group*.

        Raises:
            ConfigError: it may not; the text names the first topic and the missing right.
            BackendUnavailableError, BackendTimeoutError: the broker gave no answer.
        """
        topics = [*topic_settings(self._options, group)]
        self.look(topics, AclOperation.READ, AclOperation.WRITE).require(*topics)

    def _await_topics(self, topics: list[str]) -> Seen:
        """Wait until the broker that answers knows the created topics, except those that it hides from this user."""
        deadline_s = self._clock.elapsed_s() + self._options.control_timeout_s
        while True:
            seen = self.look(topics)
            missing = set(topics) - seen.counts.keys() - seen.refusals.keys()
            if not missing:
                return seen
            if self._clock.elapsed_s() > deadline_s:
                names = ", ".join(sorted(missing))
                raise BackendTimeoutError(f"{names} did not appear within {self._options.control_timeout_s:g} s")
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
        in_force = self.settings(list(found))
        keys: list[str] = []
        for topic, wanted in needed.items():
            for key, value in in_force.get(topic, {}).items():
                if _differs(key, value, wanted):
                    keys.append(key)
                    at_least = "at least " if key in AT_LEAST else ""
                    wrong.append(f"{topic} has {key}={value} and needs {at_least}{wanted[key]}")
        if wrong:
            raise ConfigError(f"group {group!r} has other settings: {'; '.join(wrong)}", key=keys[0])


def _lacking(operations: Sequence[AclOperation] | None, needed: Sequence[AclOperation]) -> str:
    """Return the names of the *needed* operations that are missing; "" if the broker does not report *operations*."""
    if not operations or AclOperation.DESCRIBE not in operations:  # It is allowed, as the topic was described.
        return ""
    return " or ".join(each.name.lower() for each in needed if each not in operations)


def _differs(key: str, value: str, wanted: Mapping[str, str]) -> bool:
    if key not in wanted:
        return False
    if key in EXACT:
        return value != wanted[key]
    if key not in AT_LEAST or value == "-1":
        return False
    return wanted[key] == "-1" or int(value) < int(wanted[key])


def missing_group(group: str) -> ConfigError:
    """Return the error of a call for a group that was not made."""
    return ConfigError(f"there is no group {group!r}; `txcore topics create` makes it", key="group")
