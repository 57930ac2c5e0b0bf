"""Asks the database of a fence again and again, so that its outage and its return show without a half to check."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import msgspec

from txcore.clock import Clock
from txcore.errors import BusyError
from txcore.fence import FenceAnswer
from txcore.runtime.call_pool import CallPool
from txcore.runtime.commands import Call
from txcore.sidecar.fences import UNUSED_ID, open_engine, open_fence
from txcore.sidecar.plan import GroupPlan
from txcore.sidecar.source_circuit import SourceCircuit

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from txcore.sqlfence import SqlFence

ASK_EVERY_S: Final = 2.0
"""Time, in seconds, between two questions."""
ANSWER_MAX_S: Final = 4.0
"""Age, in seconds, of a question without an answer at which the database counts as down."""
HANGING_MAX: Final = 2
"""Most questions that may hang, each on a connection; while these hang, no other one is asked."""


class DatabaseWatch:
    """Asks in a thread of its own and notes each answer, or its lack, in the circuit of the group's fence. `close` it.

    A question to a frozen database hangs. It is then abandoned, and the next one is asked on another connection, so
    that a return shows even if the first connection is lost for good. The connections are the watch's own, as those of
    the checks may all be busy.

    Raises:
        ConfigError, BackendNotInstalledError: see `fences.open_engine`.
    """

    def __init__(self, plan: GroupPlan, circuit: SourceCircuit, clock: Clock) -> None:
        section = msgspec.structs.replace(plan.database_section, connections_max=HANGING_MAX)
        self._engine: Engine = open_engine(plan.database_url, section)
        self._fence: SqlFence = open_fence(self._engine, plan.section.fence_table, section)
        self._circuit = circuit
        self._clock = clock
        self._pool = CallPool(1, HANGING_MAX)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"txcore-database-{plan.name}", daemon=True)

    def start(self) -> None:
        """Begin to ask; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits `ANSWER_MAX_S` at most for a question under way."""
        self._stop.set()
        self._thread.join(ANSWER_MAX_S)
        self._pool.close()
        self._engine.dispose()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._circuit.note(self._ask())
            self._stop.wait(ASK_EVERY_S)

    def _ask(self) -> str:
        """Return why the database gives no answer; "" when it does."""
        job = self._pool.submit(Call(self._fence.peek, ([UNUSED_ID],)), self._clock.elapsed_s)
        try:
            reading = job.future.result(ANSWER_MAX_S)[UNUSED_ID]
        except BusyError:
            return f"no answer to {HANGING_MAX} questions"
        except TimeoutError:
            self._pool.abandon(job)
            return f"no answer within {ANSWER_MAX_S:g} s"
        except Exception as error:  # noqa: BLE001 - a driver's own error is a reason, too
            return str(error) or repr(error)
        return reading.reason if reading.answer is FenceAnswer.NO_ANSWER else ""
