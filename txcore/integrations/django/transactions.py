"""`atomic`: Django's block with messages, both or neither.

`transaction.on_commit` alone cannot do it: it runs after the COMMIT, so a process that dies in between loses the
message. Here the half is stored before the COMMIT, and on_commit only releases it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from django.db import connections, transaction

from txcore.connections import DatabaseConnection
from txcore.errors import FenceMisuseError, UsageError
from txcore.integrations.django.runtime import runtime
from txcore.integrations.releasing import release
from txcore.message import Message
from txcore.producer.producer import Transaction
from txcore.results import EndResult

_NOT_OUTERMOST: Final = (
    "atomic() must be the outermost block, and a transaction is open already: under ATOMIC_REQUESTS or in the admin, "
    "put @transaction.non_atomic_requests on the view and this block around its work"
)
_TEST_FILE: Final = '"TEST": {"NAME": "test.db"}'


class Outgoing:
    """The messages of one block.

    Attributes:
        transaction_id: The 16 bytes that identify the transaction everywhere.
        result: The result of the end; None before it, or when nothing was published.
    """

    def __init__(self, core: Transaction) -> None:
        self._core = core
        self._has_messages = False
        self.transaction_id = core.transaction_id
        self.result: EndResult | None = None

    def publish(self, message: Message) -> None:
        """Add a message; any number, any topics. See `Transaction.publish` for the errors."""
        self._core.publish(message)
        self._has_messages = True

    def prepare(self, connection: DatabaseConnection) -> None:
        """Make the half durable in the open transaction of *connection*, if a message was published."""
        if self._has_messages:
            self._core.prepare(connection)

    def release(self) -> None:
        """Publish the targets after the COMMIT, if there are any."""
        if self._has_messages:
            self.result = release(self._core)


@contextmanager
def atomic(using: str | None = None) -> Iterator[Outgoing]:
    """Open a transaction of the project's database; the block's messages are sent if, and only if, it commits.

        with atomic() as outgoing:
            order = Order.objects.create(item="tea")
            outgoing.publish(Message("orders.created", b"%d" % order.pk))

    It must be the outermost block (`durable=True`), so it refuses to run under ATOMIC_REQUESTS; blocks of
    `transaction.atomic` inside it are savepoints, as always. The messages are released before on_commit functions of
    the block run. In tests use TransactionTestCase: the blocks of a TestCase never commit, so nothing is sent.

    Raises:
        UsageError: *using* is not the database of the fence, or another block is open.
        NotSentError, HalfUnknownError: when the block ends; rolled back, and no consumer will see a message.
        When the database's COMMIT itself fails, Django's error is raised; it may have applied, and the check decides.
    """
    shared = runtime()
    alias = using or shared.settings.database
    if alias != shared.settings.database:
        raise UsageError(f"the fence is in database {shared.settings.database!r}, not {alias!r}")
    outgoing = Outgoing(shared.producer.begin())
    with ExitStack() as stack:
        try:
            stack.enter_context(transaction.atomic(using=alias, durable=True))
        except RuntimeError as error:  # of `durable`: nothing has begun
            raise UsageError(_NOT_OUTERMOST) from error
        if len(connections[alias].atomic_blocks) > 1:  # `durable` allows it in a TestCase only, which never commits
            yield outgoing
            return
        transaction.on_commit(outgoing.release, using=alias)
        yield outgoing
        try:
            outgoing.prepare(connections[alias].connection)
        except FenceMisuseError as error:
            if connections[alias].vendor == "sqlite" and connections[alias].is_in_memory_db():
                raise FenceMisuseError(f"{error}, as by {_TEST_FILE} in DATABASES") from error
            raise
