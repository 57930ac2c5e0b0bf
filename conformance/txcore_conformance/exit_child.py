"""A program that sends messages and ends normally; see `suite.test_normal_exit`.

Arguments: the backend's URL, group, topic, the style of sending (`STYLES`), the end of the program (`ENDINGS`). The
program fails unless every message is accepted.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Final

import txcore
from txcore import AsyncTransactionProducer, EndState, LocalTransactionState, Message, TransactionProducer
from txcore.port import Backend
from txcore_conformance.kit import patient_policy

MESSAGE_COUNT: Final = 20
BODIES: Final = tuple(b"%d" % number for number in range(MESSAGE_COUNT))
SIGNAL_TIME_MAX_S: Final = 60
COMMIT: Final = LocalTransactionState.COMMIT


class _Committing(txcore.TransactionListener):
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:  # noqa: ARG002
        return COMMIT

    def check_local_transaction(self, half: txcore.HalfView) -> LocalTransactionState:  # noqa: ARG002
        return LocalTransactionState.UNKNOWN


class _AsyncCommitting(txcore.AsyncTransactionListener):
    async def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:  # noqa: ARG002
        return COMMIT

    async def check_local_transaction(self, half: txcore.HalfView) -> LocalTransactionState:  # noqa: ARG002
        return LocalTransactionState.UNKNOWN


def _require_accepted(results: Sequence[txcore.TransactionSendResult]) -> None:
    assert all(each.end is not None and each.end.state is EndState.ACCEPTED for each in results), results


def _primitive(backend: Backend, group: str, topic: str) -> None:
    producer = TransactionProducer(backend, group, policy=patient_policy(backend))
    for body in BODIES:
        transaction = producer.begin()
        transaction.publish(Message(topic, body))
        transaction.prepare()
        assert transaction.commit().state is EndState.ACCEPTED


def _database(backend: Backend, group: str, topic: str) -> None:
    import sqlalchemy  # noqa: PLC0415 - only this style needs it

    with tempfile.TemporaryDirectory() as folder:
        engine = sqlalchemy.create_engine(f"sqlite:///{folder}/shop.db")
        fence = txcore.SqlFence(engine)
        fence.create()
        producer = TransactionProducer(backend, group, fence=fence, policy=patient_policy(backend))
        for body in BODIES:
            with producer.transaction(engine) as transaction:
                transaction.publish(Message(topic, body))
            assert transaction.result is not None
            assert transaction.result.state is EndState.ACCEPTED
        engine.dispose()


def _listener(backend: Backend, group: str, topic: str) -> None:
    producer = TransactionProducer(backend, group, listener=_Committing(), policy=patient_policy(backend))
    _require_accepted([producer.send_message_in_transaction(Message(topic, body)) for body in BODIES])


def _send_many(backend: Backend, group: str, topic: str) -> None:
    producer = TransactionProducer(backend, group, listener=_Committing(), policy=patient_policy(backend))
    _require_accepted(producer.send_many((Message(topic, body), None) for body in BODIES))


def _asyncio(backend: Backend, group: str, topic: str) -> None:
    producer = AsyncTransactionProducer(backend, group, listener=_AsyncCommitting(), policy=patient_policy(backend))

    async def send() -> None:
        _require_accepted(await producer.send_many([(Message(topic, body), None) for body in BODIES]))

    asyncio.run(send())


STYLES: Final[dict[str, Callable[[Backend, str, str], None]]] = {
    "primitive": _primitive,
    "database": _database,
    "listener": _listener,
    "send_many": _send_many,
    "asyncio": _asyncio,
}


def _return(backend: Backend) -> None:
    """Return, so that the program ends after its last line."""


def _exit(backend: Backend) -> None:  # noqa: ARG001
    sys.exit(0)


def _raise(backend: Backend) -> None:  # noqa: ARG001
    raise RuntimeError("as an uncaught error ends a program")


def _close(backend: Backend) -> None:
    """Close without waiting."""
    backend.close()


def _terminate(backend: Backend) -> None:  # noqa: ARG001
    """Receive SIGTERM, which the program handles."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.kill(os.getpid(), signal.SIGTERM)
    signal.sigtimedwait([], SIGNAL_TIME_MAX_S)


def _fork(backend: Backend) -> None:  # noqa: ARG001
    """End in a forked child first: the parent must send the messages that it accepted."""
    process = os.fork()
    if process:
        _, status = os.waitpid(process, 0)
        assert os.waitstatus_to_exitcode(status) == 0


ENDINGS: Final[dict[str, Callable[[Backend], None]]] = {
    "return": _return,
    "exit": _exit,
    "raise": _raise,
    "close": _close,
    "terminate": _terminate,
    "fork": _fork,
}
FORKED: Final = "multiprocessing"
"""Name of the end in which a child of `multiprocessing` sends the messages and ends; this program waits for it."""
STATUS: Final = {"raise": 1}
"""Exit statuses of the program by its end; 0 for all others."""


def run(url: str, group: str, topic: str, style: str, ending: str) -> None:
    """Send the messages, and end."""
    if ending == FORKED:
        child = multiprocessing.get_context("fork").Process(target=run, args=(url, group, topic, style, "return"))
        child.start()
        child.join()
        sys.exit(child.exitcode)
    backend = txcore.connect(url)
    STYLES[style](backend, group, topic)
    ENDINGS[ending](backend)


if __name__ == "__main__":
    run(*sys.argv[1:])
