"""The border: the interface of the fence and the inbox to any kind of connection.

Statements have `:name` parameters. A border reports the state of the transaction in the library, and ends it; its
writer runs the statements of a producer on the driver's connection, and reports the state there. Both decide nothing
and translate no errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from txcore.sqlfence.identity import Database

Row = tuple[Any, ...]
Values = Mapping[str, Any]

POSTGRESQL: Final = "postgresql"
MYSQL: Final = "mysql"
SQLITE: Final = "sqlite"


@dataclass(slots=True)
class Mark:
    """The record about a connection that carries a fence row.

    Attributes:
        transaction_id: The id of the row.
        transaction: The library's own object of the row's transaction; None where there is none.
        owned: True when the fence opened the connection and must close it.
        carrier: Returns the library's connection that wrote the row, while that connection lives.
        database: The database that has the row.
    """

    transaction_id: bytes
    transaction: Any
    owned: bool
    carrier: Callable[[], Any]
    database: Database


class Writer(Protocol):
    """The driver's own connection under a border. Statements bypass the library, whose hooks do not see them."""

    @property
    def family(self) -> str:
        """The database's family: postgresql, mysql or sqlite."""

    @property
    def memory(self) -> dict[str, Any]:
        """A dictionary that lives as long as this connection to the server; its keys are names of tables."""

    def quick_rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql*, which has rows, and return them. On PostgreSQL values and columns are text."""

    def quick_change(self, sql: str, values: Values) -> int:
        """Run *sql* and return how many rows it inserted, matched or deleted."""

    def open_at_driver(self) -> bool | None:
        """Return whether the driver reports an open transaction; None when it does not know."""

    def is_surely_open(self) -> bool:
        """Return whether the driver is certain, from the answer to the last statement, that a transaction is open."""

    def is_autocommit(self) -> bool | None:
        """Return whether the driver is in autocommit mode; None when it does not know."""


class Border(Protocol):
    """A connection, as the fence uses it. One thread at a time, like the connection itself."""

    @property
    def family(self) -> str:
        """The database's family: postgresql, mysql or sqlite."""

    @property
    def home(self) -> Any:
        """The engine of the connection, or the connection itself: the object that lives as long as its settings."""

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql* and return its rows; an empty list without rows."""

    def change(self, sql: str, values: Values) -> int:
        """Run *sql* and return how many rows it inserted, matched or deleted."""

    def begin(self) -> None:
        """Let the library begin its transaction if it has not, so that it knows of statements that bypass it."""

    def writer(self) -> Writer:
        """Return the writer on the driver's connection that the library uses now; ask again in each call."""

    def commits_each_statement(self) -> bool:
        """Return whether a statement run now would be committed by itself."""

    def has_known_savepoint(self) -> bool:
        """Return whether the library itself has opened a savepoint on this connection."""

    def is_open(self) -> bool:
        """Return whether the transaction is open: the marked one, if there is a mark, else any."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll back the whole transaction, savepoints included."""

    def close(self) -> None:
        """Return the connection to its pool."""

    def mark(self, transaction_id: bytes, database: Database, *, owned: bool) -> None:
        """Remember that the open transaction carries the row of *transaction_id*, which *database* has."""

    def marked(self) -> Mark | None:
        """Return the mark, if there is one for this connection."""

    def idle(self) -> Border | None:
        """Return the border over the connection that carried the marked row, if its holder has kept it and it has no
        open transaction; None where this is not certain, as another program may use it by now.
        """
