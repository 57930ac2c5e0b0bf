"""Membership in the form of the port: events to the checker; checkpoints and give_up from the checker."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from txcore.backends.checkpoint_record import encode_checkpoint
from txcore.backends.holdings import STUCK_LEASES, Holdings
from txcore.errors import BackendTimeoutError, ClosedError, ConfigError, TxcoreError
from txcore.port import running
from txcore.records import Checkpoint, ClaimEvent, Status
from txcore_nats.control import missing_group
from txcore_nats.membership import Membership
from txcore_nats.publishing import NoStreamError, Sending
from txcore_nats.shared import Shared


class LeaseClaim:
    """Membership in a group; implements `Claim`. The backend's loop keeps its heartbeat."""

    def __init__(self, shared: Shared, group: str, member: str, identity: str) -> None:
        self.group = group
        self._shared = shared
        self._lock = threading.Lock()
        self._closing: Future[None] | None = None
        self._holdings = Holdings(shared.clock.elapsed_s, STUCK_LEASES * shared.options.lease_s)
        self._membership = Membership(shared, self._holdings, group, member, identity)
        shared.loop.call(self._membership.open)

    def poll(self) -> Sequence[ClaimEvent]:
        """See `Claim.poll`."""
        self._require_open()
        if self._membership.error is not None:
            raise self._membership.error
        overdue = self._membership.lose_overdue()
        if overdue:
            self._shared.loop.call(lambda: self._membership.give_back(overdue))
        return self._holdings.poll()

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """See `Claim.checkpoint`; a plain put: the last one written is in force, from any writer."""
        self._require_open()
        future: Future[None] = running()
        shared = self._shared

        def ended(status: Status, error: TxcoreError | None, _ack: Any) -> None:
            if status is Status.DURABLE:
                future.set_result(None)
                shared.housekeeper.checkpointed(shared.groups.names(self.group), partition, checkpoint)
            elif isinstance(error, NoStreamError):
                future.set_exception(missing_group(self.group))
            else:
                future.set_exception(error or BackendTimeoutError("no answer to a checkpoint"))

        def put() -> None:
            try:
                subject = shared.groups.names(self.group).key("checkpoint", partition)
            except ConfigError as error:
                future.set_exception(error)
                return
            deadline_s = shared.clock.elapsed_s() + shared.options.delivery_timeout_s
            shared.publisher.send(Sending(subject, encode_checkpoint(checkpoint), "", deadline_s, ended))

        shared.loop.call(put)
        return future

    def give_up(self, partition: int) -> None:
        """See `Claim.give_up`; the other members see it at once."""
        if self._holdings.give_up(partition) is not None:
            self._shared.loop.call(lambda: self._membership.give_back([partition]))

    def close(self, timeout_s: float) -> Future[None]:
        """See `Claim.close`."""
        with self._lock:
            if self._closing is not None:
                return self._closing
            closing: Future[None] = running()
            self._closing = closing
        self._holdings.close()
        self._shared.loop.call(lambda: self._membership.close(timeout_s, closing))
        return closing

    def _require_open(self) -> None:
        if self._closing is not None:
            raise ClosedError("this claim is closed")
