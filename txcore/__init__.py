"""txcore: transactional (half) messages for existing message brokers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from txcore.errors import (
    BackendConflictError,
    BackendNotInstalledError,
    BackendTimeoutError,
    BackendUnavailableError,
    BusyError,
    CheckPostponedError,
    ClosedError,
    CommitUnknownError,
    ConfigError,
    DataLossError,
    FencedError,
    FenceMisuseError,
    HalfRefusedError,
    HalfUnknownError,
    InboxHorizonError,
    InMessageTableError,
    MessageRejectedError,
    NewerRecordError,
    NotJoinedError,
    NotSentError,
    OutcomeUnknownError,
    TransactionStateError,
    TxcoreError,
    UnknownSchemeError,
    UnsignedRecordError,
    UsageError,
    WireFormatError,
    WrongDatabaseError,
)
from txcore.hookspecs import Event, hookimpl
from txcore.ids import TransactionId
from txcore.listener import (
    AsyncListenerTransaction,
    AsyncTransactionListener,
    HalfView,
    ListenerTransaction,
    TransactionListener,
)
from txcore.message import CheckPolicy, LocalTransactionState, Message
from txcore.message_table import CancelState
from txcore.producer.asynchronous import AsyncTransaction, AsyncTransactionProducer
from txcore.producer.producer import Transaction, TransactionProducer
from txcore.producer.transaction import current_transaction
from txcore.records import Capabilities
from txcore.registry import connect
from txcore.results import EndResult, EndState, TransactionSendResult
from txcore.serializers import Serializer
from txcore.signing import GroupKeys, SigningKeys

if TYPE_CHECKING:
    from txcore.checker.checker import Checker, CheckerStats, CheckReport
    from txcore.checker.limits import Limits
    from txcore.checker.partition_owner import PartitionStats
    from txcore.inbox import AsyncInbox, Inbox
    from txcore.operator.lists import ParkedHalf, PendingHalf
    from txcore.operator.operator import Operator
    from txcore.outbox.relay import Relay, RelayLimits, RelayStats
    from txcore.sqlfence import AsyncSqlFence, SqlFence

__all__ = [
    "AsyncInbox",
    "AsyncListenerTransaction",
    "AsyncSqlFence",
    "AsyncTransaction",
    "AsyncTransactionListener",
    "AsyncTransactionProducer",
    "BackendConflictError",
    "BackendNotInstalledError",
    "BackendTimeoutError",
    "BackendUnavailableError",
    "BusyError",
    "CancelState",
    "Capabilities",
    "CheckPolicy",
    "CheckPostponedError",
    "CheckReport",
    "Checker",
    "CheckerStats",
    "ClosedError",
    "CommitUnknownError",
    "ConfigError",
    "DataLossError",
    "EndResult",
    "EndState",
    "Event",
    "FenceMisuseError",
    "FencedError",
    "GroupKeys",
    "HalfRefusedError",
    "HalfUnknownError",
    "HalfView",
    "InMessageTableError",
    "Inbox",
    "InboxHorizonError",
    "Limits",
    "ListenerTransaction",
    "LocalTransactionState",
    "Message",
    "MessageRejectedError",
    "NewerRecordError",
    "NotJoinedError",
    "NotSentError",
    "Operator",
    "OutcomeUnknownError",
    "ParkedHalf",
    "PartitionStats",
    "PendingHalf",
    "Relay",
    "RelayLimits",
    "RelayStats",
    "Serializer",
    "SigningKeys",
    "SqlFence",
    "Transaction",
    "TransactionId",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionStateError",
    "TxcoreError",
    "UnknownSchemeError",
    "UnsignedRecordError",
    "UsageError",
    "WireFormatError",
    "WrongDatabaseError",
    "__version__",
    "connect",
    "current_transaction",
    "hookimpl",
]


_HOMES: Final = {
    "AsyncInbox": "inbox",
    "AsyncSqlFence": "sqlfence",
    "CheckReport": "checker.checker",
    "Checker": "checker.checker",
    "CheckerStats": "checker.checker",
    "Inbox": "inbox",
    "Limits": "checker.limits",
    "Operator": "operator.operator",
    "ParkedHalf": "operator.lists",
    "PartitionStats": "checker.partition_owner",
    "PendingHalf": "operator.lists",
    "Relay": "outbox.relay",
    "RelayLimits": "outbox.relay",
    "RelayStats": "outbox.relay",
    "SqlFence": "sqlfence",
}
"""Modules of the names that are imported on first access."""

# Events are silent until the application configures logging.
logging.getLogger("txcore").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """Import what a producer does not need only on first access: SQLAlchemy, checker, relay, operator, inbox."""
    if name == "__version__":
        from importlib.metadata import version

        return version("txcore")
    if name not in _HOMES:
        raise AttributeError(f"module 'txcore' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"txcore.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
