"""A shop and a checker on a simulated broker: a visitor moves them step by step, kills them, starts them again.

Producer, checker and memory broker are the production code; its drivers, the clock and the database are the
simulator's. The visitor's choices are the only faults. The same seed and the same choices give the same trace.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from txcore.checker.limits import Limits
from txcore.ids import IdFactory
from txcore.memory import KAFKA_LIKE, PROFILES
from txcore.message import CheckPolicy, Message
from txcore.producer import transaction_flow as flow
from txcore.producer.transaction import LocalTransaction, ProducerContext, begin, publish
from txcore.runtime.commands import Flow
from txcore_conformance.sim.archive import Archive
from txcore_conformance.sim.bounds import Bounds
from txcore_conformance.sim.cast import GROUP, Cast, Style, Truth, Wish, ended
from txcore_conformance.sim.checkers import start_checker
from txcore_conformance.sim.database import SimDatabase, SimFence
from txcore_conformance.sim.judgement import judge_all, watch
from txcore_conformance.sim.narration import Narrator
from txcore_conformance.sim.process import Process
from txcore_conformance.sim.world import World

ORDERS_MAX: Final = 12
TOPIC: Final = "orders.created"
FREEZE_S: Final = 10.0
SILENCE_S: Final = 15.0
"""Time after which a step that shows nothing ends."""
AFTERMATH_S: Final = 4.0
"""Time after a kill within which its last requests arrive and the database rolls back."""


class Choice(enum.StrEnum):
    """What a visitor may choose."""

    ORDER = "order"  #: the producer begins one more transaction
    STEP = "step"  #: play until something happens
    KILL_PRODUCER = "kill producer"
    KILL_CHECKER = "kill checker"
    FREEZE_PRODUCER = "freeze producer"
    START_PRODUCER = "start producer"
    START_CHECKER = "start checker"


@dataclass(frozen=True, slots=True)
class Step:
    """What one choice led to: sentences in plain English, and the time, in seconds, before and after it."""

    began_s: float
    ended_s: float
    sentences: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Order:
    """One order; its transaction has the same place in the cast's truths."""

    number: int
    core: LocalTransaction
    process: Process
    has_returned: bool = False


@dataclass(eq=False)
class Playground:
    """One visit. Choices that are not open now are refused, see `open_choices`.

    Args:
        seed: Decides every delay, id and clock.
        broker: Name of the broker to imitate, one of `txcore.memory.PROFILES`.

    Attributes:
        opening: What happened before the first choice.
    """

    seed: int = 1
    broker: str = KAFKA_LIKE.name
    chosen: list[Choice] = field(default_factory=list, init=False)
    orders: list[Order] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        world = World(self.seed, PROFILES[self.broker])
        world.is_faulty = False
        archive = Archive(1)
        self.cast = Cast(world, SimDatabase(world), 1, archive, bounds=Bounds(Limits()))
        world.has_final_op = archive.has_final
        world.broker.ensure_group(GROUP, 1)
        world.broker.create_topic(TOPIC)
        watch(self.cast)
        self.narrator = Narrator(self.cast)
        self._killed_s = -AFTERMATH_S
        self.checker = self._start_checker()
        self.opening = tuple(self._go_on())  # the checker's claim
        self.producer, self._context = self._start_producer()

    @property
    def trace(self) -> str:
        """A hash of everything that has happened; two visits with the same seed and choices have the same one."""
        return self.cast.world.trace.hexdigest()

    # -- choices -------------------------------------------------------------------------------------------------------

    def open_choices(self) -> list[Choice]:
        """Return the choices that are open now."""
        is_awake = self.producer.frozen_until_s <= self.cast.world.now_s
        is_open = {
            Choice.ORDER: self.producer.is_alive and is_awake and len(self.orders) < ORDERS_MAX,
            Choice.STEP: True,
            Choice.KILL_PRODUCER: self.producer.is_alive,
            Choice.KILL_CHECKER: self.checker.is_alive,
            Choice.FREEZE_PRODUCER: self.producer.is_alive and is_awake,
            Choice.START_PRODUCER: not self.producer.is_alive,
            Choice.START_CHECKER: not self.checker.is_alive,
        }
        return [choice for choice in Choice if is_open[choice]]

    def choose(self, choice: str) -> Step:
        """Carry out a choice; a step, and an order's first one, end when something happens.

        Raises:
            ValueError: there is no such choice, or it is not open now.
        """
        chosen = Choice(choice)
        if chosen not in self.open_choices():
            raise ValueError(f"{choice!r} is not open now")
        world = self.cast.world
        began_s = world.now_s
        self.chosen.append(chosen)
        world.log("choice", chosen.value)
        sentences = self._carry_out(chosen)
        return Step(began_s, world.now_s, tuple(sentences))

    def _carry_out(self, chosen: Choice) -> Iterable[str]:
        if chosen is Choice.STEP:
            return self._go_on()
        if chosen is Choice.ORDER:
            self._place()
            return self._go_on()
        if chosen is Choice.START_PRODUCER:
            self.producer, self._context = self._start_producer()
        elif chosen is Choice.START_CHECKER:
            self.checker = self._start_checker()
        elif chosen is Choice.FREEZE_PRODUCER:
            self.producer.freeze(FREEZE_S)
        else:
            self._killed_s = self.cast.world.now_s
            (self.producer if chosen is Choice.KILL_PRODUCER else self.checker).kill()
        return [ANSWERS[chosen]]

    def _go_on(self) -> Iterable[str]:
        """Play events until there is something to say; name what is awaited where nothing happens for long."""
        world = self.cast.world
        if self.chosen and self.is_at_rest:
            return [self._at_rest()]
        until_s = world.now_s + SILENCE_S
        while world.step(until_s):
            sentences = self.narrator.news()
            if sentences:
                return sentences
            if self.chosen and self.is_at_rest:
                return [self._at_rest()]
        is_pending = any(journey.is_pending for journey in self.cast.archive.journeys())
        return [NO_CHECKER if is_pending and not self.checker.is_alive else STILL_WAITING]

    # -- processes -----------------------------------------------------------------------------------------------------

    def _start_checker(self) -> Process:
        process = start_checker(self.cast, is_replaced=False)
        process.loop.on_command = self.narrator.checker_yields
        return process

    def _start_producer(self) -> tuple[Process, ProducerContext]:
        cast, world = self.cast, self.cast.world
        cast.numbers += 1
        process = Process(world, f"p{cast.numbers}")
        cast.processes.append(process)
        process.loop.on_command = self.narrator.producer_yields
        capabilities = world.broker.profile.capabilities
        fence: Any = SimFence(cast.database, process)  # its calls are generators, which the simulated loop runs
        context = ProducerContext(
            group=GROUP,
            partition_count=1,
            clock=process.clock,
            ids=IdFactory(process.clock, world.rng),
            policy=CheckPolicy(),
            margin_s=capabilities.release_time_max_s,
            body_size_max=capabilities.body_size_max,
            by=f"p:{process.name}",
            fence=fence,
            store_arbitrates=capabilities.atomic_release and capabilities.resolution_is_unique,
        )
        return process, context

    def _place(self) -> None:
        core = begin(self._context)
        order = Order(len(self.orders) + 1, core, self.producer)
        self.orders.append(order)
        self.narrator.numbers[core.identity] = order.number
        self.cast.truths[core.identity] = Truth(Style.DATABASE, Wish.COMMIT, core, self.producer, 0.0)

        def returned(error: BaseException | None) -> None:
            order.has_returned = True
            ended(self.cast.world, error)

        self.producer.loop.spawn(self._transaction(order), lambda task: returned(task.error))

    def _transaction(self, order: Order) -> Flow[None]:
        """The steps of `with producer.transaction(engine) as tx`, whose block inserts an order and publishes it."""
        yield from flow.database_begin(order.core, self.cast.database)
        publish(order.core, Message(TOPIC, b'{"order": %d}' % order.number))
        yield from flow.database_finish(order.core)

    # -- rest and judgement --------------------------------------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        """Whether every order is decided on both sides, and nothing of a killed process is under way."""
        return all(self._is_over(order) for order in self.orders)

    def _is_over(self, order: Order) -> bool:
        journey = self.cast.archive.journey(order.core.identity)
        if order.process.is_alive and not order.has_returned:
            return False
        if journey is not None:
            return bool(journey.final) or journey.is_parked
        return order.has_returned or self.cast.world.now_s >= self._killed_s + AFTERMATH_S

    def verdict(self) -> tuple[int, list[str]]:
        """Return the number of second deliveries, and every broken rule; to be asked at rest."""
        duplicates = judge_all(self.cast)
        return duplicates, list(dict.fromkeys(self.cast.world.violations))

    def _at_rest(self) -> str:
        """Say what is true at rest, by the judgement of all invariants."""
        if not self.orders:
            return NOTHING_OPEN
        text = "; ".join(self.verdict()[1])
        for order in self.orders:
            text = text.replace(str(order.core.transaction_id), f"order {order.number}")
        if text:
            return f"A rule is broken: {text}."
        placed, count = len(self.cast.database.committed), len(self.orders)
        if placed == count:
            return "All is decided: each order is in the database, and its message in the topic."
        if not placed:
            return "All is decided: no order is in the database, and no message in the topic."
        return (
            f"All is decided: {placed} of {count} orders are in the database with their messages, the rest in neither."
        )


NOTHING_OPEN: Final = "No transaction is open: place an order."
NO_CHECKER: Final = (
    "Nothing happens, because no checker runs. The half waits in the log and is not lost: start a checker."
)
STILL_WAITING: Final = "Nothing has happened for a while; the checker asks again later."
ANSWERS: Final = {
    Choice.KILL_PRODUCER: "The producer is killed. What it has sent is still under way; it does nothing more.",
    Choice.KILL_CHECKER: "The checker is killed. It keeps nothing of its own: the next one reads the logs.",
    Choice.FREEZE_PRODUCER: f"The producer is frozen for {FREEZE_S:g} seconds, and does not know it.",
    Choice.START_PRODUCER: "A new producer starts. It knows nothing of the old one's orders, and need not.",
    Choice.START_CHECKER: "A new checker starts, and waits until the broker gives it the partition.",
}


def replayed(seed: int, broker: str, choices: Iterable[str]) -> Playground:
    """Return a visit after *choices*.

    Raises:
        ValueError: one of them is not open at its place.
    """
    visit = Playground(seed, broker)
    for choice in choices:
        visit.choose(choice)
    return visit
