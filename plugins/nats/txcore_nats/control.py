"""Groups: creating, verifying and looking up their streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from txcore.errors import BackendUnavailableError, ConfigError, TxcoreError
from txcore.records import RECORD_OVERHEAD_MAX, LogKind
from txcore_nats.codec import OWN_HEADERS_BYTES_MAX, STREAM_EXISTS, STREAM_NOT_FOUND, ApiError, translate
from txcore_nats.connection import Api, Link, LoopThread
from txcore_nats.markers import BEGINNING, HEADER_END, marker
from txcore_nats.options import NAME_PREFIX, PARTITION_COUNT_MAX, GroupNames, Options, shared_prefix

HALF_BYTES_MAX_DEFAULT: Final = 1 << 30
SERVER_VERSION_MIN: Final = (2, 9)
TOGETHER_VERSION_MIN: Final = (2, 11)
"""Oldest version with direct gets of many messages (`multi_last`)."""
ATOMIC_VERSION_MIN: Final = (2, 12)
NANOSECONDS: Final = 1_000_000_000
GROUPS_MAX: Final = 10_000
_SAME: Final[Mapping[str, Any]] = {
    "storage": "file",
    "retention": "limits",
    "discard": "new",
    "max_age": 0,
    "max_msgs": -1,
    "max_msg_size": -1,
    "no_ack": False,
    "sealed": False,
}
"""Settings of every stream of txcore, and the values that a server means if it does not report a setting."""


class Groups:
    """The groups that this backend knows. On the loop's thread."""

    def __init__(self, loop: LoopThread, api: Api, link: Link, options: Options) -> None:
        self._loop = loop
        self._api = api
        self._link = link
        self._options = options
        self._names: dict[str, GroupNames] = {}
        self._counts: dict[str, int] = {}
        self._direct: set[str] = set()

    def names(self, group: str) -> GroupNames:
        """Return a group's names.

        Raises:
            ConfigError: *group* is not a valid name.
        """
        names = self._names.get(group)
        if names is None:
            names = GroupNames(group, self._options)
            if len(self._names) < GROUPS_MAX:
                self._names[group] = names
        return names

    def count(self, group: str) -> int:
        """Return a group's number of partitions; 0 if this backend does not know the group yet."""
        return self._counts.get(group, 0)

    def is_direct(self, group: str) -> bool:
        """Return whether the op stream allows direct gets and has a single replica, which never lags."""
        return group in self._direct

    def takes_many(self, group: str) -> bool:
        """Return whether one request may ask the op stream for many messages."""
        client = self._link.client
        if client is None or group not in self._direct:
            return False
        version = client.connected_server_version
        return (version.major, version.minor) >= TOGETHER_VERSION_MIN

    async def find(self, group: str) -> int:
        """Return a group's number of partitions.

        Raises:
            ConfigError: the group does not exist.
            BackendUnavailableError, BackendTimeoutError: the broker was not reached.
        """
        count = self._counts.get(group)
        if count is None:
            names = self.names(group)
            config = await self._config(names.stream(LogKind.HALF))
            if config is None:
                raise missing_group(group)
            self._note(names, await self._config(names.op_stream))
            count = self._counts[group] = len(config["subjects"])
        return count

    async def ask_for(self, group: str) -> None:
        """Ask the server for the group's half stream.

        Raises:
            ConfigError: the group does not exist.
            BackendUnavailableError, BackendTimeoutError: the broker was not reached.
        """
        if await self._config(self.names(group).stream(LogKind.HALF)) is None:
            raise missing_group(group)

    def when_found(self, group: str, take: Callable[[TxcoreError | None], None]) -> None:
        """Call *take* with None after the group was found, else with the error."""

        async def ask() -> None:
            error: TxcoreError | None = None
            try:
                await self.find(group)
            except Exception as raised:  # noqa: BLE001 - reported to the waiting callers
                error = translate(raised, f"looking for group {group!r}")
            take(error)

        self._loop.spawn(ask())

    async def ensure(self, group: str, asked: int | None) -> int:
        """Create or verify a group's streams. Raises: see `Backend.ensure_group`."""
        names = self.names(group)
        if asked is not None and not 1 <= asked <= PARTITION_COUNT_MAX:
            text = f"a group has 1 to {PARTITION_COUNT_MAX} partitions, not {asked}"
            raise ConfigError(text, key="partition_count")
        await self._check_server()
        if self._options.is_atomic:
            await self._share_stream()
        found = await self._config(names.stream(LogKind.HALF))
        if found is None:
            if self._options.is_atomic and await self._config(plain_op_stream(names)) is not None:
                text = f"group {group!r} was made without release=atomic; its ops are in a stream of their own"
                raise ConfigError(text, key="release")
            await self._make(names, asked or self._options.partitions)
            found = await self._config(names.stream(LogKind.HALF))
        if found is None:
            raise BackendUnavailableError(f"the streams of group {group!r} vanish while they are made")
        count = len(found["subjects"])
        if asked is not None and asked != count:
            raise ConfigError(
                f"group {group!r} has {count} partitions, not {asked}; the number never changes", key="partition_count"
            )
        await self._verify(names, count)
        self._note(names, await self._config(names.op_stream))
        self._counts[group] = count
        return count

    def _note(self, names: GroupNames, config: dict[str, Any] | None) -> None:
        if config is not None and config.get("allow_direct") and config.get("num_replicas", 1) == 1:
            self._direct.add(names.group)
        else:
            self._direct.discard(names.group)

    async def _check_server(self) -> None:
        client = await self._link.connected(self._options.control_timeout_s)
        version = client.connected_server_version
        if (version.major, version.minor) < SERVER_VERSION_MIN:
            raise ConfigError(f"this server is NATS {version}; txcore needs 2.9 or newer", key="url")
        if self._options.is_atomic and (version.major, version.minor) < ATOMIC_VERSION_MIN:
            raise ConfigError(f"this server is NATS {version}; release=atomic needs 2.12 or newer", key="release")
        needed = self._options.body_size_max + RECORD_OVERHEAD_MAX + OWN_HEADERS_BYTES_MAX
        if client.max_payload < needed:
            raise ConfigError(
                f"body_size_max={self._options.body_size_max} needs a max_payload of {needed} bytes; "
                f"the server has {client.max_payload}",
                key="body_size_max",
            )

    async def _share_stream(self) -> None:
        """Verify the stream that holds the targets, and change it to accept our records and atomic batches too."""
        name = self._options.stream
        config = await self._config(name)
        if config is None:
            raise ConfigError(f"stream {name!r} does not exist; make it with the subjects of the targets", key="stream")
        problems = shared_stream_problems(config, self._options)
        if problems:
            raise ConfigError(f"stream {name!r} cannot hold ops: {'; '.join(problems)}", key="stream")
        ours = f"{shared_prefix(name)}.>"
        if ours not in config["subjects"] or not config.get("allow_atomic"):
            changed = config | {"subjects": sorted({*config["subjects"], ours}), "allow_atomic": True}
            try:
                await self._api.call(f"STREAM.UPDATE.{name}", changed)
            except ApiError as error:
                text = f"stream {name!r} needs allow_atomic and the subject {ours!r}: {error}"
                raise ConfigError(text, key="stream") from error

    async def _make(self, names: GroupNames, count: int) -> None:
        """Create the streams; the half stream comes last, as it means that all others exist."""
        for config in stream_configs(names, count, self._options):
            if self._options.is_atomic and config["name"] == names.stream(LogKind.HALF):
                await self._begin_logs(names, count)
            try:
                await self._api.call(f"STREAM.CREATE.{config['name']}", config)
            except ApiError as error:
                # Another client creates the group at the same time; the result is verified next.
                if error.err_code != STREAM_EXISTS:
                    raise translate(error, f"making stream {config['name']!r}") from error

    async def _begin_logs(self, names: GroupNames, count: int) -> None:
        """Append a first record to each log in a stream that others use as well.

        Records that are removed from such a stream may belong to others. A log that begins with this record is whole.
        """
        for partition in range(count):
            for kind in (LogKind.PARKED, LogKind.OP):
                subject, body = marker(names, kind, partition)
                try:
                    await self._api.publish(subject, body, {HEADER_END: BEGINNING})
                except ApiError as error:
                    raise translate(error, f"beginning the log on {subject!r}") from error

    async def _verify(self, names: GroupNames, count: int) -> None:
        differences = []
        for wanted in stream_configs(names, count, self._options):
            found = await self._config(wanted["name"])
            if found is None:
                differences.append(f"stream {wanted['name']} is missing")
                continue
            for key, value in wanted.items():
                if not self._is_free(key, wanted["name"], names) and _plain(key, found.get(key)) != value:
                    differences.append(f"{wanted['name']} has {key} {found.get(key)!r}, not {value!r}")
            if found.get("persist_mode") == "async":
                differences.append(f"{wanted['name']} has persist_mode 'async', which acknowledges what is not stored")
        if differences:
            raise ConfigError(f"group {names.group!r} has other settings: {'; '.join(differences)}", key="group")

    def _is_free(self, key: str, stream: str, names: GroupNames) -> bool:
        """Return whether the operator may choose the setting *key*, as this backend's URL does not name it."""
        if key == "description":
            return stream != names.stream(LogKind.HALF)  # the half stream's description names the op stream
        if key in {"name", "allow_direct"}:
            return True
        if key == "num_replicas":
            return not self._options.replicas
        return key == "max_bytes" and (stream != names.stream(LogKind.HALF) or self._options.half_bytes_max < 0)

    async def _config(self, stream: str) -> dict[str, Any] | None:
        try:
            answer = await self._api.call(f"STREAM.INFO.{stream}")
        except ApiError as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise translate(error, f"looking for stream {stream!r}") from error
        config: dict[str, Any] = answer["config"]
        return config


def stream_configs(names: GroupNames, count: int, options: Options) -> list[dict[str, Any]]:
    """Return the configurations of a group's streams for requests to JetStream, the half stream last."""
    half_bytes_max = HALF_BYTES_MAX_DEFAULT if options.half_bytes_max < 0 else options.half_bytes_max or -1
    common = {**_SAME, "num_replicas": options.replicas or 1, "allow_direct": True, "max_msgs_per_subject": -1}
    configs = [
        {
            **common,
            "name": names.bucket_stream,
            "description": f"txcore: members and checkpoints of group {names.group}",
            "subjects": [f"$KV.{names.bucket}.>"],
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
            "max_bytes": -1,
        },
    ]
    kinds = [(LogKind.HALF, half_bytes_max)]
    if not options.is_atomic:
        kinds = [(LogKind.PARKED, -1), (LogKind.OP, -1), *kinds]
    for kind, max_bytes in kinds:
        configs.append(
            {
                **common,
                "name": names.stream(kind),
                "description": f"txcore: {kind.value} log of group {names.group}, ops in {names.op_stream}",
                "subjects": [names.subject(kind, partition) for partition in range(count)],
                "max_bytes": max_bytes,
            }
        )
    return configs


def shared_stream_problems(config: Mapping[str, Any], options: Options) -> list[str]:
    """Return the reasons why a user's stream cannot hold ops besides targets."""
    problems = [
        f"{key} is {config.get(key)!r}, not {value!r}"
        for key, value in (("storage", "file"), ("retention", "limits"))
        if config.get(key) != value
    ]
    problems += [f"it has {key}" for key in ("sealed", "no_ack", "mirror", "deny_purge") if config.get(key)]
    if config.get("persist_mode") == "async":
        problems.append("persist_mode is 'async', which acknowledges what is not stored")
    if config.get("max_msgs_per_subject", -1) > 0:
        problems.append("max_msgs_per_subject would drop ops")
    limited = [key for key in ("max_msgs", "max_bytes") if config.get(key, -1) > 0]
    if limited and config.get("discard") != "new":
        problems.append(f"{' and '.join(limited)} would drop ops, as discard is not 'new'")
    if 0 < config.get("max_age", 0) < options.keep_s * NANOSECONDS:
        problems.append(f"max_age is below keep_s={options.keep_s:g}")
    return problems


def plain_op_stream(names: GroupNames) -> str:
    """Return the name of the stream that would hold a group's ops without `release=atomic`."""
    return f"{NAME_PREFIX}_{names.token}_op"


def missing_group(group: str) -> ConfigError:
    """Return the error of a call for a group that does not exist."""
    return ConfigError(f"group {group!r} does not exist; `txcore topics create` makes it", key="group")


def _plain(key: str, value: Any) -> Any:
    return _SAME.get(key) if value is None else value
