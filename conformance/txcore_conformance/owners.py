"""Real owners of one partition on the memory broker, in simulated time, for tests that kill, drain and delay them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import msgspec

from txcore import wire
from txcore.checker.context import CheckContext
from txcore.checker.limits import Limits
from txcore.checker.partition_owner import PartitionOwner
from txcore.fence import Fence, FenceAnswer, FenceReading
from txcore.listener import HalfView
from txcore.memory import KAFKA_LIKE, Faults, MemoryBackend, MemoryBroker, Profile
from txcore.message import CheckPolicy, LocalTransactionState
from txcore.operator.operator import Operator
from txcore.records import Checkpoint, Half, HalfRecord, LogKind, Op, OpKind, ParkCode, Resolution, TargetMessage
from txcore.runtime.commands import Call, Spawn
from txcore.runtime.instrumentation import Reporter
from txcore_conformance.refine.world import Clock, One, Task

GROUP: Final = "g"
SHORTEST_S: Final = 0.000_001


def name_of(number: int) -> bytes:
    """Return the transaction id for a number."""
    return number.to_bytes(16, "big")


class AnsweringFence:
    """A fence that has one answer.

    Attributes:
        asked: Ids that it was asked about, in order.
    """

    is_async = False

    def __init__(self, answer: FenceAnswer) -> None:
        self.answer = answer
        self.asked: list[bytes] = []

    def check(self, transaction_ids: Sequence[bytes], group: str) -> dict[bytes, FenceReading]:  # noqa: ARG002
        """See `Fence.check`."""
        self.asked += transaction_ids
        return {each: FenceReading(self.answer) for each in transaction_ids}


class Owners:
    """One partition, its writers, and the owners that a test starts, runs and kills.

    Attributes:
        listener: Answers by the number of the transaction.
        asked: Numbers that the listener was asked about, in order.
        call_s: Duration, in seconds, of a question to listener or fence.
    """

    def __init__(
        self,
        profile: Profile = KAFKA_LIKE,
        *,
        listener: Callable[[int], LocalTransactionState] | None = None,
        fence: Fence | None = None,
        faults: Faults | None = None,
        limits: Limits | None = None,
        check_max: int = 3,
        **capabilities: Any,
    ) -> None:
        promised = replace(profile.capabilities, **capabilities)
        self.clock = Clock()
        self.faults = faults or Faults()
        self.broker = MemoryBroker(
            replace(profile, capabilities=promised, merge_delay_s=0.0), clock=self.clock, faults=self.faults
        )
        self.broker.ensure_group(GROUP, 1)
        self.backend = MemoryBackend(self.broker)
        self.operator = Operator(self.backend, GROUP, clock=self.clock)
        self.listener = listener or (lambda _: LocalTransactionState.UNKNOWN)
        self.fence = fence
        self.limits = limits or Limits(checkpoint_interval_s=0.0)
        self.policy = CheckPolicy(immunity_s=0.001, interval_s=1.0, check_max=check_max)
        self.asked: list[int] = []
        self.call_s = 0.0
        self._randomness = Random(1)
        self._tasks: list[Task] = []
        self._count = 0

    # -- owners ----------------------------------------------------------------------------------------------------

    def start(self) -> PartitionOwner:
        """Start an owner from the stored checkpoint."""
        owner = self._made()
        self._tasks.append(Task(owner, owner.run(), self.clock.now_s))
        return owner

    def _made(self) -> PartitionOwner:
        self._count += 1
        member = f"c{self._count}"
        claim = self.backend.claim(GROUP, member)
        context = CheckContext(
            backend=self.backend,
            group=GROUP,
            clock=self.clock,
            randomness=self._randomness,
            claim=claim,
            policy=self.policy,
            limits=self.limits,
            report=Reporter("txcore.owners"),
            by=f"c:{member}",
            listeners=(self,),
            fence=self.fence,
        )
        return PartitionOwner(context, 0)

    def kill(self, owner: PartitionOwner) -> None:
        """End an owner at once, with all of its flows."""
        self._tasks = [task for task in self._tasks if task.owner is not owner]

    def restart(self, owner: PartitionOwner, seconds: float = 60.0) -> PartitionOwner:
        """Kill an owner and run the next one for the given time."""
        self.kill(owner)
        following = self.start()
        self.run(seconds)
        return following

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """See `CheckListener`."""
        number = int.from_bytes(half.transaction_id, "big")
        self.asked.append(number)
        return self.listener(number)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let the given time pass, at most until *until* holds; return whether it holds."""
        end_s = self.clock.now_s + seconds
        while not until():
            ready = [task for task in self._tasks if task.ready_s <= self.clock.now_s]
            if not ready:
                next_s = min((task.ready_s for task in self._tasks), default=end_s)
                self.clock.now_s = min(next_s, end_s)
                if next_s >= end_s:
                    return until()
            for task in ready:
                if task in self._tasks and not task.advance(self._carry_out):
                    self._tasks = [each for each in self._tasks if each is not task]
        return True

    def _carry_out(self, task: Task, command: Any) -> Any:
        if isinstance(command, HalfRecord):
            half: One = One(command)
            self.backend.append_halves(half)
            return half.outcome
        if isinstance(command, Resolution):
            resolution: One = One(command)
            self.backend.release(resolution, task.owner.context.claim)
            return resolution.outcome
        if isinstance(command, Call):
            task.ready_s = self.clock.now_s + self.call_s
            return command.function(*command.args)
        if isinstance(command, Spawn):
            self._tasks.append(Task(task.owner, command.flow, self.clock.now_s))
            return None
        if not isinstance(command, int | float):
            return command.result(0)
        task.ready_s = self.clock.now_s + max(command, SHORTEST_S)
        return None

    # -- writers -----------------------------------------------------------------------------------------------------

    def half(self, number: int, **fields: Any) -> Half:
        """Append a producer's half, or a copy without a proof if the fields are those of a copy."""
        return self.append_half(Half(1, name_of(number), GROUP, 0, **(self.plain(number) | fields)))

    def owned(self, number: int, **fields: Any) -> Half:
        """Append a producer's half that its partition's owner releases."""
        version = wire.OWNER_VERSION
        return self.append_half(
            Half(version, name_of(number), GROUP, 0, **(self.plain(number) | {"release": 1} | fields))
        )

    def plain(self, number: int) -> dict[str, Any]:
        """Return the fields of a producer's half."""
        return {
            "generation": 0,
            "born_ms": self.clock.wall_ms(),
            "immunity_ms": 1,
            "interval_ms": 1000,
            "check_max": 3,
            "fenced": False,
            "by": "p:1",
            "messages": [TargetMessage("t", None, b"b%d" % number, {})],
        }

    def append_half(self, half: Half) -> Half:
        """Append a half record."""
        self.broker.append(GROUP, LogKind.HALF, 0, wire.encode_half(half))
        return half

    def proven(self, copy: Half) -> Half:
        """Append the proof of a copy, and return the copy that names its place."""
        self.broker.append_ops(GROUP, 0, [Op(OpKind.TICK, wire.proof_of(copy), 0, "c:other")])
        return msgspec.structs.replace(copy, proved_at=int(self.log(LogKind.OP)[-1].position))

    def copied(self, number: int, **fields: Any) -> Half:
        """Append a copy of a half, and its proof before it."""
        return self.append_half(self.proven(Half(1, name_of(number), GROUP, 0, **(self.plain(number) | fields))))

    def op(self, kind: OpKind, number: int, generation: int = 0, **fields: Any) -> int:
        """Append an op, and return its position."""
        made: dict[str, Any] = {"by": "p:1", "at_ms": self.clock.wall_ms()}
        op = Op(kind, name_of(number), generation, **(made | fields))
        self.broker.append_ops(GROUP, 0, [op])
        return int(self.log(LogKind.OP)[-1].position)

    def claim(self, token: bytes) -> None:
        """Append the CLAIM of an owner that takes no other step."""
        self.broker.append_ops(GROUP, 0, [Op(OpKind.CLAIM, token, 0, "c:other", token=token)])

    def commit(self, number: int, **fields: Any) -> None:
        """Publish a half's target and append its COMMIT, as its producer does."""
        message = TargetMessage("t", None, b"b%d" % number, {})
        half = HalfRecord(GROUP, 0, name_of(number), 0, b"", [message])
        self.broker.publish(Resolution(half, None, (0,), b"", "p:1"), 0)
        self.op(OpKind.COMMIT, number, **fields)

    # -- stored records ----------------------------------------------------------------------------------------------

    def log(self, kind: LogKind) -> list[Any]:
        """Return a whole log."""
        return list(self.broker.log(GROUP, kind, 0))

    def trim(self, kind: LogKind, before: int) -> None:
        """Drop the records before a position, as retention does."""
        self.broker.trim(GROUP, kind, 0, before)

    def ops(self, number: int) -> list[Op]:
        """Return a transaction's ops."""
        found = [op for record in self.log(LogKind.OP) for op in wire.decode_ops(record.body)]
        return [op for op in found if op.transaction_id == name_of(number)]

    def kinds(self, number: int) -> list[str]:
        """Return the names of a transaction's ops."""
        return [OpKind(op.kind).name for op in self.ops(number)]

    def copies(self, number: int) -> list[Half]:
        """Return a transaction's half records."""
        found = [wire.decode_half(record.body) for record in self.log(LogKind.HALF)]
        return [half for half in found if half.transaction_id == name_of(number)]

    def parked(self) -> list[tuple[int, ParkCode]]:
        """Return the records of the parked log, as (number, code)."""
        entries = [wire.decode_parked(record.body) for record in self.log(LogKind.PARKED)]
        return [(int.from_bytes(each.transaction_id, "big"), ParkCode(each.code)) for each in entries]

    def listed(self) -> list[int]:
        """Return the numbers on the operator's list of parked halves."""
        return [int.from_bytes(each.transaction_id, "big") for each in self.operator.parked()]

    def delivered(self) -> list[bytes]:
        """Return the bodies in the target topic."""
        return [target.body for target in self.broker.topics.get("t", [])]

    def checkpoint(self) -> Checkpoint | None:
        """Return the stored checkpoint."""
        return self.broker.checkpoints.get((GROUP, 0))
