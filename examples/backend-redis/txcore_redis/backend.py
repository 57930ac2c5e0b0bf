"""The backend: the port's members on top of three lanes to one server."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from txcore.backends.exit_flush import run_beside
from txcore.clock import SystemClock
from txcore.errors import ClosedError, ConfigError, MessageRejectedError, UsageError
from txcore.lifecycle import ClosedAtExit
from txcore.port import Batch, Claim, failed, running
from txcore.records import (
    MARK_KINDS,
    Capabilities,
    Checkpoint,
    HalfRecord,
    LogKind,
    Op,
    Outcome,
    Position,
    Resolution,
)
from txcore_redis.data import append_command, mark_command, outcome_of, release_command
from txcore_redis.errors import unknown_group
from txcore_redis.guarantees import capabilities_of
from txcore_redis.lanes import Command, Lane
from txcore_redis.options import PARTITION_COUNT_MAX, Options
from txcore_redis.ownership import Keeper, RedisClaim, load_checkpoint
from txcore_redis.reading import RedisReader
from txcore_redis.scripts import ENSURE, group_key

VERSION_MIN: Final = 7


class RedisBackend(ClosedAtExit):
    """A Redis server as a broker; implements `Backend`. Thread safe; a forked child opens its own.

    Threads and connections start with the first call that needs them: one lane for the data path, so that marks come
    after the ops before them; one for reading; one for control calls, so that heartbeats wait for neither.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._capabilities = capabilities_of(options)
        clock = SystemClock()
        self._data = Lane("data", options, clock, options.delivery_timeout_s)
        self._reading = Lane("reading", options, clock, options.control_timeout_s)
        self._control = Lane("control", options, clock, options.control_timeout_s)
        self._keeper = Keeper(self._control, clock, options.lease_s)
        self._pid: int | None = None
        self._lock = threading.Lock()
        self._closing: Future[None] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """See `Backend.capabilities`."""
        return self._capabilities

    def ensure_group(self, group: str, partition_count: int | None = None) -> Future[int]:
        """See `Backend.ensure_group`; 1 to 256 partitions."""
        self._enter()
        if not group or (partition_count is not None and not 1 <= partition_count <= PARTITION_COUNT_MAX):
            text = f"a group has a name and 1 to {PARTITION_COUNT_MAX} partitions, not {group!r}, {partition_count!r}"
            return failed(ConfigError(text, key="partition_count" if group else "group"))

        def parse(answers: list[bytes]) -> int:
            check_server(answers[0], self.options)
            count = int(answers[1])
            if partition_count not in {None, count}:
                text = f"group {group!r} has {count} partitions, not {partition_count}; the number never changes"
                raise ConfigError(text, key="partition_count")
            return count

        ensure = ENSURE.call((group_key(group),), partition_count or self.options.partitions)
        return self._control.ask([("INFO",), ensure], parse)

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        """See `Backend.append_halves`."""
        self._enter()
        self._submit(batch, lambda half: append_command(half, self.options), _half_outcome)

    def release(self, batch: Batch[Resolution], claim: Claim | None = None) -> None:
        """See `Backend.release`: targets, parked record and op of an item appear together or not at all.

        A final op, COMMITTED or DISCARD is SUPERSEDED by an earlier final op of its transaction, even the same, and by
        a DISCARD of its generation or a later one. After a COMMITTED come its RELEASED, or the DISCARD of its reader.
        """
        self._enter()
        is_fenced = claim is not None
        self._submit(batch, lambda item: release_command(item, self.options, is_fenced=is_fenced), _release_outcome)

    def mark(self, group: str, partition: int, op: Op, claim: Claim | None = None) -> Future[Outcome]:
        """See `Backend.mark`; a CLAIM makes its token the newest of the partition."""
        self._enter()
        assert op.kind in MARK_KINDS
        future: Future[Outcome] = running()
        command = mark_command(group, partition, op, is_fenced=claim is not None)
        self._data.submit([command], lambda answers: future.set_result(outcome_of(answers[0], group, partition)))
        return future

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> RedisReader:
        """See `Backend.read`."""
        self._enter()
        return RedisReader(self._reading, group, kind, partition, start)

    def claim(self, group: str, member: str) -> RedisClaim:
        """See `Backend.claim`; assignments need a group that `ensure_group` has made."""
        self._enter()
        return self._keeper.join(group, f"{member}#{secrets.token_hex(8)}")

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        """See `Backend.load_checkpoint`."""
        self._enter()
        return load_checkpoint(self._control, group, partition)

    def ping(self, group: str) -> Future[None]:
        """See `Backend.ping`."""
        self._enter()

        def parse(answers: list[int]) -> None:
            if not answers[0]:
                raise unknown_group(group, 0)

        return self._control.ask([("EXISTS", group_key(group))], parse)

    def poll(self, *_: object, **__: object) -> bool:
        """See `Backend.poll`; its threads are not lent."""
        return False

    def close(self, timeout_s: float = 10.0) -> Future[None]:
        """See `Backend.close`; claims leave their groups, so that others take over at once."""
        with self._lock:
            if self._closing is not None:
                return self._closing
            closing: Future[None] = running()
            self._closing = closing
        if self._pid not in {None, os.getpid()}:
            closing.set_result(None)  # the threads and connections are the parent's
        else:
            run_beside(lambda: self._close(timeout_s, closing), "txcore-redis-close")
        return closing

    def _close(self, timeout_s: float, closing: Future[None]) -> None:
        try:
            self._keeper.heartbeat.close()
            for lane in (self._data, self._control, self._reading):
                lane.close(timeout_s / 3)
        finally:
            closing.set_result(None)

    def _enter(self) -> None:
        """Refuse calls after `close` and in forked children."""
        if self._closing is not None:
            raise ClosedError("this redis backend is closed")
        pid = os.getpid()
        if self._pid != pid:
            if self._pid is not None:
                raise UsageError("this redis backend was opened before a fork; open another one in the child")
            self._pid = pid

    def _submit(
        self, batch: Batch[Any], command_of: Callable[[Any], Command], outcome: Callable[[Any, Any], Outcome]
    ) -> None:
        """Send the items that can be sent, and settle each by its own answer."""
        items, sent, commands = [*batch.items], [], []
        for index, item in enumerate(items):
            try:
                commands.append(command_of(item))
            except MessageRejectedError as error:
                batch.settle(index, outcome(item, error))
            else:
                sent.append(index)

        def done(answers: list[Any]) -> None:
            for index, answer in zip(sent, answers, strict=True):
                batch.settle(index, outcome(items[index], answer))

        if commands:
            self._data.submit(commands, done)


def _half_outcome(half: HalfRecord, answer: Any) -> Outcome:
    return outcome_of(answer, half.group, half.partition)


def _release_outcome(resolution: Resolution, answer: Any) -> Outcome:
    return outcome_of(answer, resolution.half.group, resolution.half.partition, tuple(resolution.targets))


def check_server(info: bytes, options: Options) -> None:
    """Check the answer to INFO against the promises of the URL.

    Raises:
        ConfigError: the server is too old, part of a cluster, may evict keys, or keeps no append-only file.
    """
    found = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    wrong = None
    if int(found["redis_version"].split(".")[0]) < VERSION_MIN:
        wrong = f"is version {found['redis_version']}; this backend needs {VERSION_MIN}"
    elif found.get("cluster_enabled") == "1":
        wrong = "is part of a cluster, where a release cannot be atomic over several topics"
    elif found.get("maxmemory", "0") != "0" and found["maxmemory_policy"].startswith("allkeys"):
        wrong = f"evicts keys at maxmemory ({found['maxmemory_policy']}); set maxmemory-policy noeviction"
    elif options.persistence == "aof" and found.get("aof_enabled") != "1":
        wrong = "keeps no append-only file, so it forgets halves when it dies; set appendonly yes, or persistence=any"
    if wrong:
        raise ConfigError(f"the Redis server at {options.server} {wrong}", key="url")
