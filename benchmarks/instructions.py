"""`python -m benchmarks.instructions`: the cost of a transaction in Python's own instructions, without a real clock.

Bytecode instructions and calls of Python functions are the same in each run of the same code on the same Python, on an
idle or a busy machine. For that, each reading of the clock advances it, and randomness has a seed: the code gathers
for a few milliseconds, starts an id anew each millisecond and gives way by the clock. The database style runs on a
SQLite file, and what SQLAlchemy executes is not counted. `tests/core/test_instructions.py` compares the counts with
limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import rich
import rich.table
import sqlalchemy
import typer

import txcore
from benchmarks.null_kafka import null_backend
from benchmarks.styles import AsyncCommitting, Committing
from txcore.memory import KAFKA_LIKE, MemoryBackend, MemoryBroker
from txcore.port import Backend

COUNT: Final = 200
GROUP: Final = "g"
TOPIC: Final = "t"
BODY: Final = b"x" * 300
SHOWN: Final = 25
LIBRARY: Final = str(Path(sqlalchemy.__file__).parent)
"""Folder of the code that is not counted."""
READING_US: Final = 10
"""Time, in microseconds, by which each reading advances the clock; a transaction reads it some three to ten times."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Average cost of one transaction.

    Attributes:
        by_function: Instructions of each function, by its name.
    """

    instructions: float
    calls: float
    by_function: dict[str, float]


class _Counting:
    """Counts the instructions and calls of the calling thread within the block."""

    def __init__(self) -> None:
        self.instructions: Counter[str] = Counter()
        self.calls = 0

    def __enter__(self) -> _Counting:
        gc.collect()
        gc.disable()  # a finalizer may run Python code at any moment
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _entered(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            if frame.f_code.co_filename.startswith(LIBRARY):
                return None
            self.calls += 1
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.instructions[frame.f_code.co_qualname] += 1
        return self._entered


class _Clock:
    """A clock that each reading advances, so that time depends on the work and not on the machine."""

    def __init__(self) -> None:
        self._readings = itertools.count(1)

    def elapsed_s(self) -> float:
        """Return the time so far, in seconds."""
        return next(self._readings) * (READING_US / 1_000_000)

    def wall_ms(self) -> int:
        """Return the same time in milliseconds, from an arbitrary day."""
        return 1_700_000_000_000 + next(self._readings) * READING_US // 1_000

    def boot_id(self) -> str:
        """Return the name of this clock."""
        return "counted"


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with such a clock."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self.time = clock.elapsed_s  # type: ignore[method-assign]


def _memory(clock: _Clock) -> Backend:
    return MemoryBackend(MemoryBroker(KAFKA_LIKE, clock=clock))


def _kafka(clock: _Clock) -> Backend:
    return null_backend(clock, GROUP, TOPIC)


BACKENDS: Final[dict[str, Callable[[_Clock], Backend]]] = {"memory": _memory, "kafka": _kafka}
"""The broker in memory, and the Kafka plugin on a driver that acknowledges at once."""


@contextlib.contextmanager
def send_many(made: Callable[[_Clock], Backend]) -> Iterator[Callable[[int], None]]:
    """Send all transactions in one call."""
    producer = _producer(made)
    yield lambda count: _require(producer.send_many((_message(), None) for _ in range(count)), count)


@contextlib.contextmanager
def blocking(made: Callable[[_Clock], Backend]) -> Iterator[Callable[[int], None]]:
    """Send the transactions from one caller, one after the other."""
    producer = _producer(made)
    yield lambda count: _require([producer.send_message_in_transaction(_message()) for _ in range(count)], count)


@contextlib.contextmanager
def tasks(made: Callable[[_Clock], Backend]) -> Iterator[Callable[[int], None]]:
    """Send each transaction from an asyncio task of its own."""
    clock = _Clock()
    producer = txcore.AsyncTransactionProducer(
        made(clock), GROUP, listener=AsyncCommitting(), clock=clock, randomness=random.Random(1)
    )

    async def all_at_once(count: int) -> None:
        calls = (producer.send_message_in_transaction(_message()) for _ in range(count))
        _require(await asyncio.gather(*calls), count)

    with asyncio.Runner(loop_factory=lambda: _Loop(clock)) as runner:
        yield lambda count: runner.run(all_at_once(count))


@contextlib.contextmanager
def database(made: Callable[[_Clock], Backend]) -> Iterator[Callable[[int], None]]:
    """Send the transactions from one caller in the database style, each with a fence row and no business row."""
    with tempfile.TemporaryDirectory() as folder:
        engine = sqlalchemy.create_engine(f"sqlite:///{folder}/shop.db")
        fence = txcore.SqlFence(engine)
        fence.create()
        producer = _producer(made, fence=fence)

        def send() -> txcore.EndResult | None:
            with producer.transaction() as tx:
                tx.publish(_message())
            return tx.result

        def run(count: int) -> None:
            results = [send() for _ in range(count)]
            assert all(result is not None and result.state is txcore.EndState.ACCEPTED for result in results)

        yield run
        engine.dispose()


STYLES: Final[dict[str, Callable[..., AbstractContextManager[Callable[[int], None]]]]] = {
    "send_many": send_many,
    "blocking": blocking,
    "tasks": tasks,
    "database": database,
}


def cost_of(style: str, backend: str = "memory", count: int = COUNT) -> Cost:
    """Return the cost of a transaction in one of `STYLES` on one of `BACKENDS`; all but "database" have a listener.

    Args:
        count: Number of counted transactions, after as many for the warm-up. Fewer tasks than `POLLING_COUNT` of the
            drivers wait for the plugin's poll thread, which the null driver has not.
    """
    with STYLES[style](BACKENDS[backend]) as run:
        run(count)
        with _Counting() as counting:
            run(count)
    by_function = {name: executed / count for name, executed in counting.instructions.most_common()}
    return Cost(sum(by_function.values()), counting.calls / count, by_function)


def _producer(made: Callable[[_Clock], Backend], fence: txcore.SqlFence | None = None) -> txcore.TransactionProducer:
    clock = _Clock()
    return txcore.TransactionProducer(
        made(clock), GROUP, fence=fence, listener=Committing(), clock=clock, randomness=random.Random(1)
    )


def _message() -> txcore.Message:
    return txcore.Message(TOPIC, BODY, b"key")


def _require(results: list[txcore.TransactionSendResult], count: int) -> None:
    assert count == sum(result.end is not None and result.end.state is txcore.EndState.ACCEPTED for result in results)


def main(backend: str = "memory") -> None:
    """Print the cost of each style on a backend, memory or kafka, and the functions with the largest share."""
    costs = {style: cost_of(style, backend) for style in STYLES}
    table = rich.table.Table("bytecode instructions of one transaction", box=None)
    for style in costs:
        table.add_column(style, justify="right")
    table.add_row("all", *(f"{cost.instructions:,.0f}" for cost in costs.values()))
    table.add_row("calls of functions", *(f"{cost.calls:,.0f}" for cost in costs.values()))
    names = dict.fromkeys(itertools.chain.from_iterable(cost.by_function for cost in costs.values()))
    ranked = sorted(names, key=lambda name: -max(cost.by_function.get(name, 0.0) for cost in costs.values()))
    for name in ranked[:SHOWN]:
        table.add_row(name, *(f"{cost.by_function.get(name, 0.0):,.1f}" for cost in costs.values()))
    rich.print(table)


if __name__ == "__main__":
    typer.run(main)
