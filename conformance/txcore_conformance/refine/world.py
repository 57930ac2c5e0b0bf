"""A partition on a memory broker, its real owners and their faults; steps and faults are random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from txcore import wire
from txcore.checker.context import CheckContext
from txcore.checker.limits import Limits
from txcore.checker.partition_owner import PartitionOwner
from txcore.listener import HalfView
from txcore.memory import Faults, MemoryBackend, MemoryBroker, Profile
from txcore.memory.reading import MemoryReader
from txcore.message import CheckPolicy, LocalTransactionState
from txcore.port import Reader, SettlesEach
from txcore.records import (
    FINAL_KINDS,
    Checkpoint,
    Half,
    HalfRecord,
    LogKind,
    LogRecord,
    Op,
    OpKind,
    Outcome,
    Position,
    Resolution,
)
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Call, Flow, Spawn
from txcore.runtime.instrumentation import Reporter
from txcore_conformance.refine.history import GROUP, History
from txcore_conformance.refine.whole import halves_in, ops_in

SILENCE_S: Final = 200.0
PAUSE_S: Final = 90.0
LATE_S: Final = 2.0
ENDS: Final = FINAL_KINDS | {OpKind.DISCARD}
STRAY: Final = (b"", b"stray bytes that are no record", wire.encode_ops([Op(1, b"x" * 16)])[:-3])


class Clock:
    """A clock that the world moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def wall_ms(self) -> int:
        """See `txcore.clock.Clock`."""
        return round(self.now_s * 1000)

    def elapsed_s(self) -> float:
        """See `txcore.clock.Clock`."""
        return self.now_s

    def boot_id(self) -> str:
        """See `txcore.clock.Clock`."""
        return "one"


class Quiet:
    """The limits of reads: no record of a silent log, few records of another log, all records if `is_over`."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.silent: dict[LogKind, float] = {}  #: ends of the silences
        self.alone = 0.0  #: share of the readers that find nothing for a time while others read
        self.is_over = False


class QuietReader(MemoryReader):
    """A reader that may return nothing for a time, as while its log has no leader."""

    def __init__(self, broker: MemoryBroker, kind: LogKind, start: Position | None, quiet: Quiet) -> None:
        super().__init__(broker, (GROUP, kind, 0), start)
        self._kind = kind
        self._quiet = quiet
        self.silent_until_s = 0.0  #: of this reader only

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`; a read without records does not prove the end of the log."""
        quiet = self._quiet
        if quiet.is_over:
            return super().read(count_max)
        if max(quiet.silent.get(self._kind, 0.0), self.silent_until_s) > self._broker.clock.elapsed_s():
            return ()
        return super().read(min(count_max, 1 + int(quiet.rng.random() * 4)))


class QuietBackend(MemoryBackend):
    """A connection whose readers may be silent."""

    def __init__(self, broker: MemoryBroker, quiet: Quiet) -> None:
        super().__init__(broker)
        self._quiet = quiet

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> Reader:  # noqa: ARG002
        """See `Backend.read`; now and then the new reader returns nothing for a time, while older readers continue."""
        reader = QuietReader(self.broker, kind, start, self._quiet)
        if not self._quiet.is_over and self._quiet.rng.random() < self._quiet.alone:
            reader.silent_until_s = self.broker.clock.elapsed_s() + SILENCE_S * self._quiet.rng.random()
        return reader


@dataclass(slots=True)
class Given:
    """A checkpoint that an owner sent, and the lengths of the logs at that time."""

    checkpoint: Checkpoint
    halves: int
    ops: int


class Witness(Faults):
    """Keeps every checkpoint that is sent, with the lengths of the logs."""

    def __init__(self) -> None:
        self.broker: MemoryBroker | None = None
        self.given: list[Given] = []

    def checkpoint_sent(self, member: str, partition: int, checkpoint: Checkpoint) -> None:  # noqa: ARG002
        """See `Faults.checkpoint_sent`."""
        assert self.broker is not None
        lengths = [len(self.broker.log(GROUP, kind, 0)) for kind in (LogKind.HALF, LogKind.OP)]
        self.given.append(Given(checkpoint, *lengths))


class Report(Reporter):
    """Keeps the errors of checkers, except the timeouts that a silent log may cause."""

    def __init__(self) -> None:
        super().__init__("txcore.refine")
        self.errors: list[str] = []

    def event(self, name: str, **fields: Any) -> None:
        """See `Reporter.event`."""
        if name == names.CHECKER_ERROR and "TimeoutError" not in str(fields.get("error")):  # a log may be silent
            self.errors.append(str(fields.get("error")))


@dataclass(slots=True, eq=False)
class Task:
    """A flow of one owner, and the value with which it continues."""

    owner: PartitionOwner
    flow: Flow[None]
    ready_s: float = 0.0
    value: Any = None
    error: BaseException | None = None

    def advance(self, carry_out: Callable[[Task, Any], Any]) -> bool:
        """Let the flow take its next step, and have *carry_out* execute it; returns whether the flow continues."""
        error, self.error = self.error, None
        try:
            command = self.flow.throw(error) if error is not None else self.flow.send(self.value)
        except StopIteration:
            return False
        self.value = None
        try:
            self.value = carry_out(self, command)
        except Exception as raised:  # noqa: BLE001 - the flow decides what it means
            self.error = raised
        return True


class One(SettlesEach):
    """A batch of one item."""

    def __init__(self, item: Any) -> None:
        self.items = (item,)
        self.outcome: Outcome | None = None

    def settle(self, index: int, outcome: Outcome) -> None:  # noqa: ARG002
        """See `Batch.settle`."""
        self.outcome = outcome


class BrokerLogs:
    """Writes a history to a memory broker, and reports to the history the records that any writer appended."""

    def __init__(self, broker: MemoryBroker, rng: Random) -> None:
        self.history: History | None = None
        self._broker = broker
        self._rng = rng
        self._halves = 0
        self._ops = 0

    def append_half(self, half: Half) -> None:
        """Append a half record."""
        self._broker.append(GROUP, LogKind.HALF, 0, wire.encode_half(half))
        self.sync()

    def append_ops(self, ops: Sequence[Op]) -> None:
        """Append an op record."""
        self._broker.append_ops(GROUP, 0, ops)
        self.sync()

    def append_stray(self, *, is_op: bool) -> None:
        """Append bytes that are not a record, or a record that was cut."""
        stray = STRAY[int(self._rng.random() * len(STRAY))]
        self._broker.append(GROUP, LogKind.OP if is_op else LogKind.HALF, 0, stray)

    def sync(self) -> None:
        """Report to the history the records that have landed since the last call."""
        assert self.history is not None
        halves = self._broker.log(GROUP, LogKind.HALF, 0)
        ops = self._broker.log(GROUP, LogKind.OP, 0)
        for place, half in halves_in(halves[self._halves :]):
            self.history.took_half(place, half)
        for place, record in ops_in(ops[self._ops :]):
            self.history.took_ops(place, record)
        self._halves, self._ops = len(halves), len(ops)


@dataclass(slots=True)
class World:
    """One partition, its writers and its owners."""

    rng: Random
    profile: Profile
    limits: Limits
    clock: Clock = field(default_factory=Clock)
    witness: Witness = field(default_factory=Witness)
    report: Report = field(default_factory=Report)
    tasks: list[Task] = field(default_factory=list)
    frozen: PartitionOwner | None = None
    owners: list[PartitionOwner] = field(default_factory=list)
    haste: float = 0.0
    late: float = 0.0  #: share of answers that are late
    wrong: str = ""
    quiet: Quiet = field(init=False)
    broker: MemoryBroker = field(init=False)
    backend: QuietBackend = field(init=False)
    logs: BrokerLogs = field(init=False)
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.quiet = Quiet(self.rng)
        self.broker = self.witness.broker = MemoryBroker(self.profile, clock=self.clock, faults=self.witness)
        self.broker.ensure_group(GROUP, 1)
        self.backend = QuietBackend(self.broker, self.quiet)
        self.logs = BrokerLogs(self.broker, self.rng)
        is_unique = self.profile.capabilities.resolution_is_unique
        self.history = self.logs.history = History(
            self.rng, self.logs, is_unique=is_unique, owners=self.rng.random() < 0.4
        )
        self.haste = 0.8 * self.rng.random()
        self.late = max(1.6 * self.rng.random() - 0.8, 0.0)
        self.quiet.alone = max(self.rng.random() - 0.5, 0.0)

    # -- owners --------------------------------------------------------------------------------------------------------

    def context(self) -> CheckContext:
        """Return the context that a new owner shares with its checker."""
        member = f"c{len(self.owners)}"
        claim = self.backend.claim(GROUP, member)
        policy = CheckPolicy(immunity_s=0.001, interval_s=1.0, check_max=3)
        return CheckContext(
            backend=self.backend,
            group=GROUP,
            clock=self.clock,
            randomness=self.rng,
            claim=claim,
            policy=policy,
            limits=self.limits,
            report=self.report,
            by=f"c:{member}",
            listeners=(self,),
        )

    def start(self) -> None:
        """Start an owner from the checkpoint that is stored."""
        owner = PartitionOwner(self.context(), 0)
        self.owners.append(owner)
        self.tasks.append(Task(owner, owner.run()))

    def kill(self, owner: PartitionOwner) -> None:
        """End an owner at its current step; none of its flows continues."""
        self.tasks = [task for task in self.tasks if task.owner is not owner]
        self.owners.remove(owner)

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """Answer an owner's check, which must not be about a half whose end the owner has read."""
        pending = self._asking.tenure.state.pending.get(half.transaction_id)
        if pending is not None:
            self._judge_act("was asked about", half.transaction_id, pending.generation)
        draw = self.rng.random()
        if draw < 0.1:
            raise RuntimeError("no answer")
        if draw < 0.8:
            return LocalTransactionState.UNKNOWN
        return LocalTransactionState.COMMIT if draw < 0.9 else LocalTransactionState.ROLLBACK

    _asking: PartitionOwner = field(init=False)

    def _judge_act(self, act: str, identity: bytes, generation: int, *, is_held: bool = False) -> None:
        """Record a violation if the owner acts on a half whose end it has read, even if it began earlier.

        Args:
            is_held: The act is about a half that is parked, and holds its order key up.
        """
        op_read = self._asking.tenure.state.op_read
        self.logs.sync()
        known = self.history.known.get(identity)
        if known is None or op_read is None or self.wrong:
            return
        truth = known.seen_at(op_read, generation)
        if is_held and truth.closed_by != OpKind.DISCARD:
            self.wrong = f"{identity[-1]} {act} as a held half, but it is not parked"
        elif truth.closed_by and not is_held:
            self.wrong = f"{identity[-1]} {act}, its end at op {truth.closed_at} was read"

    def _judge_write(self, command: HalfRecord | Resolution) -> None:
        if isinstance(command, HalfRecord):
            is_held = wire.decode_half(command.body).held_at >= 0
            self._judge_act("was carried", command.transaction_id, command.generation, is_held=is_held)
        elif command.op is not None and command.op.kind in ENDS:
            self._judge_act("was ended again", command.op.transaction_id, command.op.generation)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Take *steps* random steps of writers, faults and owners."""
        for _ in range(steps):
            draw = self.rng.random()
            if draw < 0.12:
                self.history.act()
            elif draw < 0.15:
                self.disturb()
            else:
                self.step()

    def disturb(self) -> None:
        """Cause one fault: a silent log, a pause, a frozen or killed owner, or a second owner."""
        draw = self.rng.random()
        if draw < 0.25:
            kind = LogKind.HALF if self.rng.random() < 0.6 else LogKind.OP
            self.quiet.silent[kind] = self.clock.now_s + SILENCE_S * self.rng.random()
        elif draw < 0.5:
            self.clock.now_s += PAUSE_S * self.rng.random()
        elif draw < 0.65 and self.owners:
            self.frozen = None if self.frozen else self.owners[int(self.rng.random() * len(self.owners))]
        elif draw < 0.85 and self.owners:
            self.kill(self.owners[int(self.rng.random() * len(self.owners))])
            if self.rng.random() < 0.5:
                # The next owner reads nothing from the half log, as while it has no leader.
                self.quiet.silent[LogKind.HALF] = self.clock.now_s + SILENCE_S
        elif len(self.owners) < 2:
            self.start()

    def step(self) -> None:
        """Let one flow of an owner take its next step; let time pass if all of them wait."""
        if not self.owners:
            self.start()
        tasks = [task for task in self.tasks if task.owner is not self.frozen]
        if not tasks:
            self.frozen = None
            self.owners = [owner for owner in self.owners if not owner.has_ended]
            return
        ready = [task for task in tasks if task.ready_s <= self.clock.now_s]
        if not ready:
            self.clock.now_s = min(task.ready_s for task in tasks)
            return
        # A flow that an owner has spawned may be slow to begin: the owner's own flow runs meanwhile.
        is_first = self.rng.random() < self.haste
        self._resume(ready[0 if is_first else int(self.rng.random() * len(ready))])

    def _resume(self, task: Task) -> None:
        self._asking = task.owner
        if not task.advance(self._carry_out) and task in self.tasks:
            self.tasks.remove(task)

    def _carry_out(self, task: Task, command: Any) -> Any:
        if isinstance(command, HalfRecord | Resolution):
            self._judge_write(command)
        if isinstance(command, HalfRecord | Resolution | Future) and self.rng.random() < self.late:
            task.ready_s = self.clock.now_s + LATE_S * self.rng.random()  # done at once, but the answer is late
        if isinstance(command, HalfRecord):
            half: One = One(command)
            self.backend.append_halves(half)
            return half.outcome
        if isinstance(command, Resolution):
            resolution: One = One(command)
            self.backend.release(resolution, task.owner.context.claim)
            return resolution.outcome
        if isinstance(command, Call):
            return command.function(*command.args)
        if isinstance(command, Spawn):
            self.tasks.append(Task(task.owner, command.flow))
            return None
        if isinstance(command, Future):
            return command.result(0)
        task.ready_s = self.clock.now_s + command
        return None
