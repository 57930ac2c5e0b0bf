"""The application's listener, as a producer runs it and a checker asks it."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any, Final

from txcore.listener import HalfView, Listener
from txcore.message import LocalTransactionState, Message
from txcore_conformance.sim.cast import Cast, Truth, Wish
from txcore_conformance.sim.database import SimConnection, SimDatabaseError, SimFence

WRONG_SHARE: Final = 0.15
"""Share of the fenced listeners, among those that want to commit, that return COMMIT without a commit."""


class SimListener(Listener[Any, Any]):
    """The application's listener: its answers are late or missing at times, and some fenced ones are wrong."""

    def __init__(self, cast: Cast, truth: Truth | None = None) -> None:
        self._cast = cast
        self._truth = truth

    def execute_local_transaction(self, message: Message, arg: Any) -> Generator[Any, Any, LocalTransactionState]:  # noqa: ARG002
        """Run the local transaction; in a batch it is the one in *arg*."""
        cast, truth = self._cast, arg or self._truth
        assert truth is not None
        if truth.is_fenced:
            return self._fenced_local(cast, truth)
        return self._plain_local(cast, truth)

    def _plain_local(self, cast: Cast, truth: Truth) -> Generator[Any, Any, LocalTransactionState]:
        identity = truth.core.identity
        if truth.forgets_fence:
            cast.world.note("listener forgets its fence")
        yield truth.work_s
        if truth.wish is Wish.ROLLBACK:
            cast.local[identity] = False
            return LocalTransactionState.ROLLBACK
        if truth.wish is Wish.ERROR and cast.world.rng.random() < 0.5:
            cast.local[identity] = False
            raise SimDatabaseError("not applied")
        cast.local[identity] = True
        if truth.wish is Wish.ERROR:
            raise SimDatabaseError("applied")
        return LocalTransactionState.COMMIT

    def _fenced_local(self, cast: Cast, truth: Truth) -> Generator[Any, Any, LocalTransactionState]:
        core = truth.core
        fence = core.context.fence
        assert isinstance(fence, SimFence)
        connection: SimConnection = cast.database.connect(truth.process)
        cast.database.begin(connection)
        connection.has_business = True
        # Not current_transaction(): simulated calls take time, so other flows run in this thread meanwhile.
        yield from core.fence(connection)
        yield truth.work_s
        if truth.wish is Wish.ROLLBACK:
            cast.database.roll_back(connection)
            return LocalTransactionState.ROLLBACK
        rng = random.Random(f"listener {core.identity.hex()}")
        if truth.wish is Wish.COMMIT and rng.random() < WRONG_SHARE:
            self._say_commit_wrongly(cast, truth, connection, rng)
            return LocalTransactionState.COMMIT
        yield from fence.commit(connection)
        if truth.wish is Wish.ERROR:
            raise SimDatabaseError("applied")
        return LocalTransactionState.COMMIT

    def _say_commit_wrongly(self, cast: Cast, truth: Truth, connection: SimConnection, rng: random.Random) -> None:
        """Let the database roll back without an error, or leave the transaction open and commit it later, or never."""
        if rng.random() < 0.5:
            cast.world.note("listener says COMMIT of what was rolled back")
            cast.database.roll_back(connection)
            return
        cast.world.note("listener says COMMIT of what is open")

        def end() -> None:
            if truth.process.is_alive and connection.is_open and rng.random() < 0.5:
                cast.database.commit(connection)
            else:
                cast.database.roll_back(connection)

        cast.world.at(rng.random() * 10, end)

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """Answer from the application's own store; ROLLBACK only if the transaction can no longer commit."""
        cast, world = self._cast, self._cast.world
        truth = cast.truths.get(half.transaction_id)
        if truth is None:  # forged: the application knows no such transaction
            return LocalTransactionState.ROLLBACK
        world.note("listener asked")
        if world.chance(world.swarm.database):
            world.note("listener no answer")
            if world.rng.random() < 0.5:
                raise SimDatabaseError("unreachable")
            return None  # type: ignore[return-value]
        known = self._known(half.transaction_id, truth)
        is_over = not truth.process.is_alive or (known is False and not truth.is_stuck)
        if known and not truth.is_stuck:
            return LocalTransactionState.COMMIT
        if is_over and not truth.is_stuck:
            return LocalTransactionState.ROLLBACK
        truth.unknown_answers += 1
        return LocalTransactionState.UNKNOWN

    def _known(self, identity: bytes, truth: Truth) -> bool | None:
        """Return whether the application's own store has a commit; None if the transaction may still commit."""
        database = self._cast.database
        if not truth.is_fenced:
            return self._cast.local.get(identity)
        if identity in database.committed:
            return True
        return False if database.rows.get(identity) == 2 and database.holder(identity) is None else None
