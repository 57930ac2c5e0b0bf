"""The kit: one broker in memory, one clock, and what the tests of one service need around them."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self, cast

from txcore.checker.checker import Checker
from txcore.checker.limits import Limits
from txcore.errors import BackendUnavailableError, TxcoreError, UsageError
from txcore.fence import AnyFence, AsyncFence, Fence
from txcore.listener import AsyncTransactionListener, CheckListener, TransactionListener
from txcore.memory import STRONG, MemoryBackend, Profile, reachable
from txcore.message import CheckPolicy, HeaderValue, Message
from txcore.message_table import ModeName
from txcore.producer.asynchronous import AsyncTransactionProducer
from txcore.producer.producer import TransactionProducer
from txcore.testing import draining, topics
from txcore.testing.broker import KitBroker
from txcore.testing.checking import KitChecker, Waiting
from txcore.testing.clock import ManualClock
from txcore.testing.draining import DrainReport
from txcore.testing.dying import Death, Step, dying
from txcore.testing.topics import ANY
from txcore.testing.unsettled import Reasons, Unsettled, unsettled

if TYPE_CHECKING:  # needs the extra sql
    from sqlalchemy import Engine

    from txcore.outbox.relay import Relay

_numbers: Final = itertools.count(1)


@dataclass(slots=True)
class _Group:
    """The sources of answers about one group, as its producers have them, and the runners that use them."""

    fence: AnyFence | None = None
    listeners: list[CheckListener] = field(default_factory=list)
    checker: KitChecker | None = None
    uses_table: bool = False
    relays: list[Relay] = field(default_factory=list)

    @property
    def has_source(self) -> bool:
        """Whether a checker of this group would have something to ask."""
        return self.fence is not None or bool(self.listeners)


class Kit:
    """A broker in memory and a clock for one test, with producers, checkers and relays on both.

    Args:
        profile: The promises of the broker, such as `txcore.memory.KAFKA_LIKE`; the default promises everything.

    Attributes:
        clock: Moves only by `clock.advance(seconds)` and `drain`.
        backend: An open connection to the broker, for everything that takes a backend.
        url: The same for `txcore.connect(kit.url)`; for a service that reads the URL from its settings.

    Use it by `with`. For one thread. Nothing sleeps.
    """

    def __init__(self, profile: Profile = STRONG) -> None:
        self.clock = ManualClock()
        self.broker = KitBroker(profile, self.clock)
        self.backend = MemoryBackend(self.broker)
        self._open = ExitStack()
        self.url: str = self._open.enter_context(reachable(self.broker, f"kit-{next(_numbers)}"))
        self._open.enter_context(self.backend)
        self._groups: dict[str, _Group] = {}
        self._reasons = Reasons()

    # -- what a service needs ------------------------------------------------------------------------------------------

    def producer(
        self,
        group: str,
        *,
        fence: Fence | None = None,
        listener: TransactionListener | None = None,
        mode: ModeName = "half",
        **options: Any,
    ) -> TransactionProducer:
        """Return a producer on the kit's broker and clock; the arguments are those of `TransactionProducer`.

        `drain` then knows the fence and the listener of the group. A producer that your service makes itself, on
        `kit.backend` or `kit.url`, needs `clock=kit.clock`, and a `kit.checker` for `drain`.
        """
        self._learn(group, fence, listener, mode)
        return TransactionProducer(
            self.backend, group, fence=fence, listener=listener, mode=mode, clock=self.clock, **options
        )

    def async_producer(
        self,
        group: str,
        *,
        fence: AsyncFence | None = None,
        listener: AsyncTransactionListener | None = None,
        mode: ModeName = "half",
        **options: Any,
    ) -> AsyncTransactionProducer:
        """Return a producer for asyncio, see `producer`; then use `await kit.drain_async()`."""
        self._learn(group, fence, listener, mode)
        return AsyncTransactionProducer(
            self.backend, group, fence=fence, listener=listener, mode=mode, clock=self.clock, **options
        )

    def checker(
        self,
        group: str,
        *,
        fence: AnyFence | None = None,
        listener: CheckListener | Sequence[CheckListener] | None = None,
        policy: CheckPolicy | None = None,
        limits: Limits | None = None,
    ) -> Checker:
        """Return a checker on the kit's broker and clock, which `drain` uses for this group from now on.

        Its `run_once()` judges the halves that are due by the clock, as after `kit.clock.advance(6)`. A checker that
        the service runs by itself then stays a spare.
        """
        self.broker.reserve(group)
        known = self._group(group)
        known.fence = fence or known.fence
        if known.checker is not None:
            known.checker.stop()
        known.checker = KitChecker(
            self.backend,
            group,
            self.clock,
            fence=fence,
            listener=listener,
            policy=policy,
            limits=limits,
            plugins=[self._reasons],
        )
        return known.checker

    def relay(self, group: str, engine: Engine, **options: Any) -> Relay:
        """Return a relay of the group's message table, which `drain` uses; the arguments are those of `Relay`.

        A producer of the kit in mode "table" or "auto" needs none, unless its engine is asynchronous.
        """
        from txcore.outbox.relay import Relay  # noqa: PLC0415 - needs the extra sql

        relay = Relay(self.backend, group, engine, clock=self.clock, **options)
        self._group(group).relays.append(relay)
        return relay

    # -- what the test does --------------------------------------------------------------------------------------------

    def crash_before(self, step: Step) -> AbstractContextManager[None]:
        """Let the process die inside the block, just before *step*; the rest of the block is not run.

        Steps: "half", "database commit" (the half is stored, the database rolls back), "publish" (the database has
        committed, nothing was published).

        Raises:
            AssertionError: no transaction came to the step.
        """
        return dying(self.broker, Death(step, is_before=True))

    def crash_after(self, step: Step) -> AbstractContextManager[None]:
        """Let the process die inside the block, just after *step*; see `crash_before`.

        After "publish" the messages are out, and the record that they are is not: they come twice, with the same id.
        """
        return dying(self.broker, Death(step, is_before=False))

    def drain(self) -> DrainReport:
        """Publish or end every transaction that is open, as relay and checker would in time; moves the clock.

        Each prepared transaction counts as that of a dead process, once the clock has passed its immunity.

        Raises:
            UndecidedError: transactions without a checker, or whose fence or listener never answers.
            BackendUnavailableError: the test has stopped the broker.
            UsageError: an asynchronous fence; or a message table, and no blocking engine for its relay.
        """
        steps = self._drain(may_await=False)
        try:
            next(steps)
        except StopIteration as stop:
            return cast(DrainReport, stop.value)
        raise AssertionError("a blocking drain awaits nothing")

    async def drain_async(self) -> DrainReport:
        """Do as `drain`, with asynchronous fences and listeners; they run in the test's event loop."""
        import asyncio  # noqa: PLC0415 - blocking tests need none

        steps = self._drain(may_await=True)
        while True:
            try:
                waiting = next(steps)
            except StopIteration as stop:
                return cast(DrainReport, stop.value)
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def published(self, topic: str) -> list[Message]:
        """Return the messages in *topic*, in order, with all headers, as a consumer gets them; copies included."""
        return topics.messages_in(self.broker, topic)

    def assert_published(
        self,
        topic: str,
        *,
        body: bytes | str | None = None,
        value: Any = ANY,
        key: bytes | str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        count: int | None = None,
    ) -> list[Message]:
        """Return the messages in *topic* that match; fail with what is there, and what is pending and why.

        Args:
            topic: The target topic.
            body: The exact body; a text is UTF-8.
            value: The body's content as JSON.
            key: The key; a text is UTF-8.
            headers: Headers that it has among others.
            count: The exact number of these messages, copies of the same id counted once; None for at least one.

        Raises:
            AssertionError: there are more or fewer.
        """
        __tracebackhide__ = True
        wanted = topics.expected(body, value, key, headers)
        found = [each for each in topics.distinct(self.published(topic)) if wanted.matches(each)]
        if found if count is None else len(found) == count:
            return found
        number = "at least one message" if count is None else f"{count} message{'s' if count != 1 else ''}"
        raise AssertionError(
            f"expected {number} in {topic!r}{wanted}, and there {'is' if len(found) == 1 else 'are'} "
            f"{len(found) or 'none'}\n{self._explanation(topic)}"
        )

    def assert_not_published(self, topic: str) -> None:
        """Fail with what is there if *topic* holds a message. One that is pending may still come: `drain` first.

        Raises:
            AssertionError: there is one.
        """
        __tracebackhide__ = True
        count = len(topics.distinct(self.published(topic)))
        if count:
            text = self._explanation(topic)
            verb = "is" if count == 1 else "are"
            raise AssertionError(f"expected no message in {topic!r}, and there {verb} {count}\n{text}")

    def unsettled(self) -> list[Unsettled]:
        """Return the transactions that are undecided or parked, each with the reason.

        Raises:
            TxcoreError: the broker is down, or does not answer.
        """
        return [self._with_advice(each) for each in unsettled(self.backend, self.clock, self._reasons)]

    def close(self) -> None:
        """Stop checkers and relays, and forget the broker; idempotent."""
        for known in self._groups.values():
            if known.checker is not None:
                known.checker.stop()
            for relay in known.relays:
                relay.stop()
        self._groups.clear()
        self._open.close()

    def __enter__(self) -> Self:
        """Return this kit."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    # ------------------------------------------------------------------------------------------------------------------

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group())

    def _learn(self, name: str, fence: AnyFence | None, listener: Any, mode: ModeName) -> None:
        known = self._group(name)
        known.fence = fence or known.fence
        if listener is not None and listener not in known.listeners:
            known.listeners.append(listener)
        known.uses_table = known.uses_table or mode != "half"

    def _drain(self, *, may_await: bool) -> Generator[Waiting, None, DrainReport]:
        if self.broker.down:
            raise BackendUnavailableError("the memory broker is down: set kit.broker.down = False, then drain")
        checkers: list[KitChecker] = []
        relays: list[Relay] = []
        for name, known in self._groups.items():
            if known.checker is None and known.has_source:
                if known.fence is not None and known.fence.is_async and not may_await:
                    raise UsageError(f"the fence of group {name!r} is asynchronous: use `await kit.drain_async()`")
                self.checker(name, fence=known.fence, listener=known.listeners or None)
            checkers += [] if known.checker is None else [known.checker]
            relays += self._relays_of(name, known)
        return (yield from draining.drain(self.clock, checkers, relays, self.unsettled, may_await=may_await))

    def _relays_of(self, name: str, known: _Group) -> list[Relay]:
        """Return the relays of a group's message table; one is made if it has messages and a blocking engine."""
        if known.relays:
            return known.relays
        engine, table = _engine_of(known.fence), getattr(known.fence, "table", "")
        if engine is None and known.uses_table:
            raise UsageError(
                f"group {name!r} uses the message table, and the kit needs a blocking engine for its relay: "
                f"kit.relay({name!r}, create_engine(…))"
            )
        if engine is not None and (known.uses_table or self._has_messages(name, engine, table)):
            self.relay(name, engine, table=table)
        return known.relays

    def _has_messages(self, name: str, engine: Engine, table: str) -> bool:
        """Return whether the message table has any; a producer that the service made may have put them there."""
        from txcore.outbox.relay import Relay  # noqa: PLC0415 - needs the extra sql

        relay = Relay(self.backend, name, engine, table=table, clock=self.clock)
        try:
            return relay.waiting().waiting > 0
        except BackendUnavailableError:  # then the fence does not answer either, which the checker reports
            return False
        finally:
            relay.stop()

    def _with_advice(self, each: Unsettled) -> Unsettled:
        known = self._groups.get(each.group)
        if each.is_parked or (known is not None and (known.has_source or known.checker is not None)):
            return each
        advice = f"the kit knows neither fence nor listener of this group: kit.checker({each.group!r}, fence=…)"
        return replace(each, reason=advice)

    def _explanation(self, topic: str) -> str:
        left: list[str] = []
        try:
            left += map(str, self.unsettled())
            for name, known in self._groups.items():
                counts = [relay.waiting().waiting for relay in self._relays_of(name, known)]
                left += [
                    f"in the message table of group {name!r}: {count}; kit.drain() relays them"
                    for count in counts
                    if count
                ]
        except TxcoreError as error:
            left.append(f"more may be open: {error}")
        return topics.explanation(self.broker, topic, left)


def _engine_of(fence: AnyFence | None) -> Engine | None:
    """Return the blocking engine of the fence's database; None where there is none."""
    engine = getattr(fence, "engine", None)
    if engine is None:
        return None
    from sqlalchemy import Engine  # noqa: PLC0415 - needs the extra sql

    return engine if isinstance(engine, Engine) else None
