"""The backend port on NATS JetStream: one connection on a thread of its own."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from txcore.backends.checkpoint_record import decode_checkpoint
from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.errors import ClosedError, TxcoreError, UsageError
from txcore.lifecycle import ClosedAtExit
from txcore.port import Batch, Claim, Opened, failed, running
from txcore.records import Capabilities, Checkpoint, HalfRecord, LogKind, Op, Outcome, Position, Resolution
from txcore_nats.batches import Releaser
from txcore_nats.client import LinkClient
from txcore_nats.codec import ApiError, translate
from txcore_nats.connection import Api, Link, LoopThread
from txcore_nats.control import Groups
from txcore_nats.housekeeping import Housekeeper
from txcore_nats.options import Options, capabilities_of
from txcore_nats.ownership import LeaseClaim
from txcore_nats.publishing import Publisher
from txcore_nats.reading import LogReader
from txcore_nats.shared import Shared
from txcore_nats.targets import TargetChecks

DRAIN_POLL_S: Final = 0.01
LEAVE_TIMEOUT_S: Final = 2.0
IDENTITY_BITS: Final = 64
T = TypeVar("T")


class NatsBackend(ClosedAtExit):
    """One NATS account with JetStream as a txcore backend. Thread safe; connects with the first call.

    A forked child that inherits a started backend must open its own.
    """

    def __init__(
        self, options: Options | None = None, *, clock: Clock | None = None, randomness: Randomness | None = None
    ) -> None:
        self._options = options = options or Options()
        self._clock = clock or SystemClock()
        self._randomness = randomness or system_randomness()
        self._capabilities = capabilities_of(options)
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._closing: Future[None] | None = None
        self._claims: list[LeaseClaim] = []
        self._loop = LoopThread("txcore-nats")
        self._publisher = Publisher(self._loop, self._clock)
        self._link = Link(self._loop, options, _LinkOwner(self._publisher), self._randomness)
        api = Api(self._link, options)
        self._groups = Groups(self._loop, api, self._link, options)
        self._checks = TargetChecks(self._loop, api, self._publisher, options, self._clock)
        self._releaser = Releaser(
            options, self._publisher, self._checks, self._groups, self._clock, self._new_identity()
        )
        housekeeper = Housekeeper(self._loop, api, options, self._clock)
        self._shared = Shared(
            options, self._clock, self._loop, self._link, api, self._publisher, self._groups, housekeeper
        )

    @property
    def capabilities(self) -> Capabilities:
        """See `Backend.capabilities`."""
        return self._capabilities

    def open_with(self, opened: Opened) -> None:
        """See `ActsOnRecords.open_with`."""
        self._shared.housekeeper.opened = opened

    def ensure_group(self, group: str, partition_count: int | None = None) -> Future[int]:
        """See `Backend.ensure_group`; 1 to 256 partitions."""
        return self._run(lambda: self._groups.ensure(group, partition_count), f"preparing group {group!r}")

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        """See `Backend.append_halves`.

        Raises:
            ClosedError: after `close`.
            UsageError: in a forked child.
        """
        self._enter()
        self._loop.call(partial(self._releaser.append, batch, self._deadline_s()))

    def release(self, batch: Batch[Resolution], claim: Claim | None = None) -> None:
        """See `Backend.release`.

        A COMMIT, ROLLBACK or DISCARD is SUPERSEDED by an earlier final op of its transaction, even the same, and by
        a DISCARD of its generation or a later one. A COMMIT looks for one before its targets are sent.

        Raises:
            ClosedError: after `close`.
            UsageError: in a forked child.
        """
        self._enter()
        self._loop.call(partial(self._releaser.release, batch, self._deadline_s(), by_checker=claim is not None))

    def mark(self, group: str, partition: int, op: Op, claim: Claim | None = None) -> Future[Outcome]:
        """See `Backend.mark`."""
        self._enter()
        future: Future[Outcome] = running()
        deadline_s, by_checker = self._deadline_s(), claim is not None
        self._loop.call(partial(self._releaser.mark, group, partition, op, future, deadline_s, by_checker=by_checker))
        return future

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> LogReader:
        """See `Backend.read`."""
        self._enter()
        return LogReader(self._shared, group, kind, partition, start)

    def claim(self, group: str, member: str) -> LeaseClaim:
        """See `Backend.claim`; assignments need a group that `ensure_group` has made."""
        self._enter()
        claim = LeaseClaim(self._shared, group, member, self._new_identity())
        self._claims.append(claim)
        return claim

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        """See `Backend.load_checkpoint`."""

        async def load() -> Checkpoint | None:
            await self._groups.find(group)
            names = self._groups.names(group)
            request = {"last_by_subj": names.key("checkpoint", partition)}
            try:
                answer = await self._shared.api.call(f"STREAM.MSG.GET.{names.bucket_stream}", request)
            except ApiError as error:
                if error.code == 404:
                    return None
                raise
            return decode_checkpoint(base64.b64decode(answer["message"]["data"]))

        return self._run(load, f"loading a checkpoint of group {group!r}")

    def ping(self, group: str) -> Future[None]:
        """See `Backend.ping`; asks for the half stream."""
        return self._run(lambda: self._groups.ask_for(group), f"asking for group {group!r}")

    def poll(self, *_: object, **__: object) -> bool:
        """See `Backend.poll`; its event loop is not lent."""
        return False

    def close(self, timeout_s: float = 10.0) -> Future[None]:
        """See `Backend.close`; claims leave their groups, so that others take over at once."""
        with self._lock:
            if self._closing is None:
                self._closing = running()
                if self._pid is None or self._pid != os.getpid():
                    self._closing.set_result(None)  # never used, or the parent's: its connection is not closed here
                else:
                    closer = threading.Thread(
                        target=self._close, args=(timeout_s, self._closing), name="txcore-nats-close", daemon=True
                    )
                    closer.start()
            return self._closing

    def _close(self, timeout_s: float, future: Future[None]) -> None:
        try:
            done = threading.Event()

            def start() -> None:
                task = self._loop.spawn(self._shut_down(timeout_s))
                task.add_done_callback(lambda _: done.set())

            self._loop.call(start)
            done.wait(timeout_s + LEAVE_TIMEOUT_S)
            self._loop.stop(LEAVE_TIMEOUT_S)
        finally:
            for reader in tuple(self._shared.readers):
                reader.close()
            future.set_result(None)

    async def _shut_down(self, timeout_s: float) -> None:
        deadline_s = self._clock.elapsed_s() + timeout_s
        left_by = min(timeout_s, LEAVE_TIMEOUT_S)
        for claim in self._claims:
            claim.close(left_by)
        while not (self._publisher.is_idle and self._releaser.is_idle) and self._clock.elapsed_s() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)  # no event follows the last answer
        self._publisher.fail_all(ClosedError("the backend was closed before the broker answered"))
        await self._link.close()

    def _enter(self) -> None:
        """Refuse calls after `close` and in forked children; start with the first call."""
        if self._closing is not None:
            raise ClosedError("this nats backend is closed")
        pid = os.getpid()
        if self._pid != pid:
            with self._lock:
                if self._pid is not None and self._pid != pid:
                    raise UsageError("this nats backend was opened before a fork; open another one in the child")
                if self._pid is None:
                    self._loop.call(self._link.open)
                    self._pid = pid

    def _run(self, start: Callable[[], Coroutine[Any, Any, T]], doing: str) -> Future[T]:
        """Run a control call on the loop; its errors are translated into txcore's."""
        try:
            self._enter()
        except ClosedError as error:
            return failed(error)
        future: Future[T] = running()

        async def run() -> None:
            try:
                result = await start()
            except asyncio.CancelledError:
                future.set_exception(ClosedError("this nats backend was closed"))
                raise
            except Exception as error:  # noqa: BLE001 - reported through the Future
                future.set_exception(translate(error, doing))
            else:
                future.set_result(result)

        def spawn() -> None:
            self._loop.spawn(run())

        self._loop.call(spawn)
        return future

    def _new_identity(self) -> str:
        return f"{self._randomness.getrandbits(IDENTITY_BITS):016x}"

    def _deadline_s(self) -> float:
        return self._clock.elapsed_s() + self._options.delivery_timeout_s


class _LinkOwner:
    """The connection's owner, which passes its events on to the publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    async def link_up(self, client: LinkClient) -> None:
        await self._publisher.up(client)

    def link_down(self, error: TxcoreError) -> None:
        self._publisher.down(error)

    def link_refused(self, text: str) -> None:
        self._publisher.refused(text)
