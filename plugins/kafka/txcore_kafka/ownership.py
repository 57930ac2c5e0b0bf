"""Ownership: one member of a consumer group that is subscribed to the half topic, on a thread of its own.

The member fetches no records. As with every broker, the assignment is a hint; the CLAIM mark decides.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from txcore.backends import exit_flush as exiting
from txcore.backends.holdings import Holdings, State
from txcore.clock import Clock
from txcore.errors import ClosedError, ConfigError, TxcoreError
from txcore.port import running
from txcore.records import Checkpoint, ClaimEvent, LogKind
from txcore.wake import Wake
from txcore_kafka.clients import close, make_consumer
from txcore_kafka.codec import translated
from txcore_kafka.control import Control
from txcore_kafka.options import Options, consumer_group, topic_name

_log = logging.getLogger("txcore.kafka")

POLL_S: Final = 0.05
POLL_MAX_S: Final = 0.5
LEAVE_MAX_S: Final = 10.0
"""Longest wait, in seconds, until a member has left its group; then the claim continues without its end."""
POLL_GROWTH: Final = 1.1
"""Factor by which each poll is longer than the one before, while the group has no news. News ends a poll at once, but
leaving waits for its end."""
RETRY_S: Final = 1.0
HEARTBEATS: Final = 10
"""Number of heartbeats in a session timeout; a member learns of a rebalance with its next heartbeat."""


class KafkaClaim:
    """Membership of one checker; implements `Claim`."""

    def __init__(
        self,
        options: Options,
        control: Control,
        clock: Clock,
        group: str,
        member: str,
        store: Callable[[str, int, Checkpoint], Future[None]],
    ) -> None:
        self.group = group
        self._options = options
        self._control = control
        self._clock = clock
        self._member = member
        self._store = store
        self._holdings = Holdings(clock.elapsed_s, options.silence_s)
        self._answered = Wake()  #: for the driver's thread: a revoked partition was given up, or `close` was called
        self._closing: Future[None] | None = None
        self._lock = threading.Lock()
        self._refusal: TxcoreError | None = None
        self._checkpointed: dict[int, int] = {}
        self._given: list[int] | None = None  # partitions assigned in the current poll
        self._metadata: Any = None
        self._consumer: Any = None  #: the member; an older one, which still leaves, changes nothing here any more
        self._thread = threading.Thread(target=self._run, name=f"txcore-kafka-claim-{group}", daemon=True)
        self._thread.start()

    def poll(self) -> Sequence[ClaimEvent]:
        """See `Claim.poll`."""
        if self._closing is not None:
            raise ClosedError("this claim is closed")
        if self._refusal is not None:
            raise self._refusal
        return self._holdings.poll()

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """See `Claim.checkpoint`."""
        if checkpoint.half is not None:
            self._checkpointed[partition] = checkpoint.half
        return self._store(self.group, partition, checkpoint)

    def checkpointed(self, partition: int) -> int:
        """Return the half position of the last checkpoint under this claim; 0 before the first."""
        return self._checkpointed.get(partition, 0)

    def give_up(self, partition: int) -> None:
        """See `Claim.give_up`; the group is not notified unless it asked, so that no other member is disturbed."""
        state = self._holdings.give_up(partition)
        if state is State.HELD:
            self._holdings.offer_again(partition)
        self._answered.set()

    def close(self, timeout_s: float) -> Future[None]:
        """See `Claim.close`."""
        is_mine = False
        with self._lock:
            if self._closing is None:
                self._closing = running()
                is_mine = True
            closing = self._closing
        if is_mine:
            exiting.run_beside(functools.partial(self._close, timeout_s, closing), "txcore-kafka-leave")
        return closing

    @property
    def is_closed(self) -> bool:
        """Whether the member has left its group, or is about to leave."""
        return self._closing is not None

    def owns(self, partition: int) -> bool:
        """Return whether this member holds *partition*, perhaps while the group wants it back."""
        return partition in self._holdings.held

    def group_metadata(self) -> Any:
        """Return the member's identity and generation, for a transaction; None while it has no partitions."""
        return self._metadata

    def _close(self, timeout_s: float, future: Future[None]) -> None:
        self._answered.set()
        self._thread.join(timeout_s)
        future.set_result(None)

    # -- the claim's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = threading.Event()
        while not self.is_closed:
            try:
                self._control.partition_count(self.group)
                self._control.check_checker(self.group)
                self._take_part()
            except ConfigError as error:
                self._refusal = error
                return
            except (TxcoreError, KafkaException) as error:
                _log.warning("kafka.claim_error", extra={"txcore": {"group": self.group, "reason": str(error)}})
                self._holdings.lose_all()
                pause.wait(RETRY_S)

    def _take_part(self) -> None:
        """Be a member until closed; leave while the checker does not poll, and join again when it polls."""
        self._consumer = consumer = make_consumer(self._config())
        try:
            while not self.is_closed:
                self._join(consumer)
                pause_s = POLL_S
                while not self.is_closed and not self._holdings.is_stuck:
                    message = consumer.poll(pause_s)
                    pause_s = min(pause_s * POLL_GROWTH, POLL_MAX_S)
                    if self._given is not None:
                        pause_s = POLL_S
                        self._take(consumer, self._given)
                    error = None if message is None else message.error()
                    if error is not None:
                        self._judge(error)
                if self._holdings.is_stuck:
                    _log.warning("kafka.claim_silent", extra={"txcore": {"group": self.group, "member": self._member}})
                    consumer.unsubscribe()
                    while self._holdings.is_stuck and not self.is_closed:
                        consumer.poll(POLL_S)
                    self._holdings.lose_all()
        finally:
            self._metadata = None
            self._holdings.lose_all()
            self._consumer = None
            close(consumer, LEAVE_MAX_S)

    def _join(self, consumer: Any) -> None:
        consumer.subscribe(
            [topic_name(self.group, LogKind.HALF)],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _on_assign(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        if consumer is not self._consumer:
            return
        # The member fetches no records: the offset does not matter, and a paused partition is not read.
        places = [TopicPartition(each.topic, each.partition, 0) for each in partitions]
        consumer.assign(places)
        if places:
            consumer.pause(places)
        self._given = sorted(each.partition for each in partitions)

    def _take(self, consumer: Any, partitions: Sequence[int]) -> None:
        """Hold *partitions* from now on: the generation must be known before any record is written under it.

        The generation is read here, after the poll: another thread that asks the driver for it waits until a poll ends.
        """
        self._given = None
        self._metadata = consumer.consumer_group_metadata()
        for partition in partitions:
            self._holdings.assign(partition)

    def _on_revoke(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        if consumer is not self._consumer:
            return
        drain_s = self._options.drain_s
        if not (self.is_closed or self._holdings.is_stuck):
            until_s = self._clock.elapsed_s() + drain_s
            for partition in sorted(each.partition for each in partitions):
                self._holdings.revoke(partition, until_s)
            while self._holdings.draining and not self.is_closed and (left_s := until_s - self._clock.elapsed_s()) > 0:
                self._answered.wait(left_s)
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        if consumer is not self._consumer:
            return
        self._holdings.lose(sorted(each.partition for each in partitions))
        self._given = self._metadata = None
        consumer.unassign()

    def _judge(self, error: KafkaError) -> None:
        ours = translated(error, f"taking part in group {self.group!r}")
        if isinstance(ours, ConfigError):
            raise ours
        _log.debug("kafka.claim", extra={"txcore": {"group": self.group, "reason": error.str()}})

    def _config(self) -> dict[str, Any]:
        session_ms = round(self._options.session_timeout_s * 1000)
        return self._options.connection() | {
            "client.id": self._member or "txcore",
            "group.id": consumer_group(self.group),
            "partition.assignment.strategy": "range",
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": session_ms // HEARTBEATS,
            "max.poll.interval.ms": max(session_ms, round((self._options.drain_s + 30) * 1000)),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
        }
