"""One client's connection to a memory broker; implements the backend port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import msgspec

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ClosedError, ConfigError, HalfRefusedError
from txcore.lifecycle import ClosedAtExit
from txcore.memory.broker import MemoryBroker
from txcore.memory.profile import Fate
from txcore.memory.reading import MemoryClaim, MemoryReader
from txcore.port import Batch, Reader, failed, resolved, running
from txcore.port import Claim as ClaimPort
from txcore.records import DURABLE, Checkpoint, HalfRecord, LogKind, Op, OpKind, Outcome, Position, Resolution, Status


class MemoryBackend(ClosedAtExit):
    """One client's connection to a memory broker; implements `Backend`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.capabilities = broker.profile.capabilities
        self.alive = True  #: False once the simulator has killed this client: it gets no answer any more
        self._closed = False
        self._queued: dict[tuple[str, int], list[tuple[Op, Callable[[Outcome], None] | None]]] = {}

    def ensure_group(self, group: str, partition_count: int | None = None) -> Future[int]:
        """See `Backend.ensure_group`."""
        self._require_open()
        try:
            return resolved(self.broker.ensure_group(group, partition_count))
        except ConfigError as error:
            return failed(error)

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        """See `Backend.append_halves`."""
        self._require_open()
        for index, half in enumerate(batch.items):
            self.request("half", partial(self._store, half), partial(batch.settle, index), (half.transaction_id,))

    def _store(self, half: HalfRecord) -> Outcome:
        refusal = self.broker.refusal(half)
        if refusal is not None:
            return Outcome(Status.REFUSED, refusal)
        return self.broker.append(half.group, LogKind.HALF, half.partition, half.body)

    def release(self, batch: Batch[Resolution], claim: ClaimPort | None = None) -> None:
        """See `Backend.release`."""
        self._require_open()
        for index, resolution in enumerate(batch.items):
            done = partial(batch.settle, index)
            unknown = self.broker.unknown_group(resolution.half.group)
            if unknown is not None:
                done(Outcome(Status.REFUSED, unknown))
            elif self.capabilities.atomic_release:
                self._release_at_once(resolution, claim, done)
            else:
                self._release_in_steps(resolution, claim, done)

    def _release_at_once(
        self, resolution: Resolution, claim: ClaimPort | None, done: Callable[[Outcome], None]
    ) -> None:
        half, op = resolution.half, resolution.op
        marks = self.broker.mark_counts[half.group, half.partition]

        def apply() -> Outcome:
            is_marked = marks != self.broker.mark_counts[half.group, half.partition]
            if is_marked and claim is not None and self.broker.profile.is_transactional:
                return Outcome(Status.UNKNOWN, BackendUnavailableError("a mark ended the transaction"))
            turned_away = None if op is None else self._turned_away(half, op, claim)
            if turned_away is not None:
                return turned_away
            for index in resolution.targets:
                refusal = self.broker.topic_refusal(half.messages[index].topic)
                if refusal is not None:
                    return Outcome(Status.REFUSED, refusal)
            for index in resolution.targets:
                self.broker.publish(resolution, index)
            if resolution.parked:
                self.broker.append(half.group, LogKind.PARKED, half.partition, resolution.parked)
            return DURABLE if op is None else self.broker.append_ops(half.group, half.partition, [op])

        def settle(outcome: Outcome) -> None:
            if outcome.status in {Status.REFUSED, Status.UNKNOWN}:
                outcome = msgspec.structs.replace(outcome, missing=tuple(resolution.targets))
            done(outcome)

        self.request("op", apply, settle, (half.transaction_id,))

    def _turned_away(self, half: HalfRecord, op: Op, claim: ClaimPort | None) -> Outcome | None:
        """Return the refusal of a half's op by the store itself, or None."""
        return self.broker.fenced(half.group, half.partition, op, claim) or self.broker.superseded(half.group, op)

    def _release_in_steps(
        self, resolution: Resolution, claim: ClaimPort | None, done: Callable[[Outcome], None]
    ) -> None:
        """Targets (or the parked record) first, each confirmed; only then the op."""
        half, op = resolution.half, resolution.op
        taken = None if op is None else self.broker.superseded(half.group, op)
        if taken is not None:
            done(taken)
            return
        steps: list[tuple[str, Callable[[], Outcome], int]] = [
            ("target", partial(self.broker.publish, resolution, index), index) for index in resolution.targets
        ]
        if resolution.parked:
            append = partial(self.broker.append, half.group, LogKind.PARKED, half.partition, resolution.parked)
            steps.append(("parked", append, -1))
        if not steps:
            self._release_op(resolution, claim, done)
            return
        outcomes: dict[int, Outcome] = {}

        def one_done(index: int, outcome: Outcome) -> None:
            outcomes[index] = outcome
            if len(outcomes) < len(steps):
                return
            failures = {index: each for index, each in outcomes.items() if each.status is not Status.DURABLE}
            if not failures:
                self._release_op(resolution, claim, done)
                return
            first = min(failures.values(), key=lambda each: each.status is not Status.REFUSED)  # the first refusal
            unconfirmed = tuple(sorted(index for index in failures if index >= 0))
            done(msgspec.structs.replace(first, missing=unconfirmed))

        for what, apply, index in steps:
            self.request(what, apply, partial(one_done, index), (half.transaction_id,))

    def _release_op(self, resolution: Resolution, claim: ClaimPort | None, done: Callable[[Outcome], None]) -> None:
        half, op = resolution.half, resolution.op
        if op is None:
            done(DURABLE)
            return
        delay_s = self.broker.profile.merge_delay_s
        if delay_s and self.broker.schedule is not None:
            self._queue_op(half.group, half.partition, op, done if resolution.flush else None, delay_s)
            if not resolution.flush:
                done(DURABLE)
            return

        def apply() -> Outcome:
            return self._turned_away(half, op, claim) or self.broker.append_ops(half.group, half.partition, [op])

        self.request("op", apply, done, (half.transaction_id,))

    def _queue_op(
        self, group: str, partition: int, op: Op, done: Callable[[Outcome], None] | None, delay_s: float
    ) -> None:
        queue = self._queued.setdefault((group, partition), [])
        queue.append((op, done))
        if len(queue) == 1:
            assert self.broker.schedule is not None
            self.broker.schedule(delay_s, lambda: self._flush_ops(group, partition))

    def _flush_ops(self, group: str, partition: int) -> None:
        queue = self._queued.pop((group, partition), None)
        if not queue or not self.alive:
            return
        ops = [op for op, _ in queue]

        def settle(outcome: Outcome) -> None:
            for _, done in queue:
                if done is not None:
                    done(outcome)

        ids = [op.transaction_id for op in ops]
        self.request("op", lambda: self.broker.append_ops(group, partition, ops), settle, ids)

    def mark(self, group: str, partition: int, op: Op, claim: ClaimPort | None = None) -> Future[Outcome]:
        """See `Backend.mark`."""
        self._require_open()
        unknown = self.broker.unknown_group(group)
        if unknown is not None:
            return failed(unknown)
        self._flush_ops(group, partition)
        future: Future[Outcome] = running()

        def apply() -> Outcome:
            fenced = None if op.kind == OpKind.CLAIM else self.broker.fenced(group, partition, op, claim)
            return fenced or self.broker.append_ops(group, partition, [op])

        self.request("mark", apply, future.set_result)
        return future

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> Reader:
        """See `Backend.read`."""
        self._require_open()
        return MemoryReader(self.broker, (group, kind, partition), start)

    def claim(self, group: str, member: str) -> MemoryClaim:
        """See `Backend.claim`."""
        self._require_open()
        return MemoryClaim(self.broker, self.request, group, member)

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        """See `Backend.load_checkpoint`."""
        self._require_open()
        unknown = self.broker.unknown_group(group)
        if unknown is not None:
            return failed(unknown)
        return resolved(self.broker.checkpoints.get((group, partition)))

    def ping(self, group: str) -> Future[None]:
        """See `Backend.ping`."""
        self._require_open()
        if self.broker.down:
            return failed(BackendUnavailableError("the broker is down"))
        unknown = self.broker.unknown_group(group)
        return resolved(None) if unknown is None else failed(unknown)

    def poll(self, *_: object, **__: object) -> bool:
        """See `Backend.poll`; only the caller works here."""
        return False

    def close(self, timeout_s: float = 10.0) -> Future[None]:  # noqa: ARG002
        """See `Backend.close`."""
        for group, partition in list(self._queued):
            self._flush_ops(group, partition)
        self._closed = True
        return resolved(None)

    def request(
        self,
        what: str,
        apply: Callable[[], Outcome],
        done: Callable[[Outcome], None],
        transaction_ids: Sequence[bytes] = (),
    ) -> None:
        """Send one request to the broker with the fate that the faults give it."""
        broker = self.broker
        fate = broker.faults.fate(what, transaction_ids)
        timeout_s = broker.profile.answer_timeout_s
        unknown = Outcome(Status.UNKNOWN, BackendTimeoutError(f"no answer to the {what} within {timeout_s:g} s"))

        def hear(outcome: Outcome) -> None:
            if self.alive:
                done(outcome)

        def arrive(*, answered: bool) -> None:
            with broker.lock:
                if broker.down:
                    if answered:
                        self._later(timeout_s, lambda: hear(unknown))
                    return
                outcome = apply()
                if fate is Fate.TWICE and outcome.status is Status.DURABLE and not broker.profile.is_transactional:
                    apply()
            if answered:
                self._later(broker.faults.delay_s(), lambda: hear(outcome))

        if broker.down or fate is Fate.LOST:
            self._later(timeout_s, lambda: hear(unknown))
        elif fate is Fate.REFUSED:
            refusal = HalfRefusedError(f"the broker refused the {what}")
            self._later(broker.faults.delay_s(), lambda: hear(Outcome(Status.REFUSED, refusal)))
        elif fate in {Fate.ACK_LOST, Fate.LATE}:
            self._later(timeout_s, lambda: hear(unknown))
            delay_s = broker.faults.delay_s() + (2 * timeout_s if fate is Fate.LATE else 0)
            self._later(delay_s, lambda: arrive(answered=False))
        else:
            self._later(broker.faults.delay_s(), lambda: arrive(answered=True))

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        if self.broker.schedule is None:
            action()
        else:
            self.broker.schedule(delay_s, action)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("this backend is closed")
