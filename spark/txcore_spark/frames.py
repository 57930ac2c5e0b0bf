"""The seam between the audit and its engines: frames of rows, what a step keeps of them, and the engine itself.

Frames are computed when they are collected, counted, kept or written. `txcore_spark.engines` has the implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, Self

from txcore.config.audit import AuditSection
from txcore_spark.expressions import Column, Named
from txcore_spark.plan import Range
from txcore_spark.store import Store

How = Literal["inner", "left", "full", "left_semi", "left_anti"]
Wanted = Sequence[tuple[str, Sequence[Range]]]
"""Ranges to read, by the URL of their broker or database."""


class Frame(Protocol):
    """A table that an engine computes."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""

    def where(self, holds: Column) -> Self:
        """Return the rows for which a condition holds."""

    def select(self, *columns: Named) -> Self:
        """Return these columns."""

    def with_column(self, name: str, value: Column) -> Self:
        """Return the frame with one more column, or another value in a column."""

    def aggregate(self, by: Sequence[Named], *columns: Column) -> Self:
        """Return one row for all rows with the same values of *by*, with aggregates."""

    def join(self, other: Self, on: Sequence[str], how: How = "inner") -> Self:
        """Return the rows that are equal in these columns, side by side."""

    def union(self, other: Self) -> Self:
        """Return the rows of both; columns by name."""

    def distinct(self) -> Self:
        """Return each row once."""

    def one_of_each(self, names: Sequence[str]) -> Self:
        """Return one row for all rows with the same values in these columns."""

    def small(self) -> Self:
        """Return the frame, which has few rows, for a join."""

    def small_if_few(self) -> Self:
        """Return the frame for a join, which may depend on its size."""

    def spread(self, name: str) -> Self:
        """Return the rows, those with the same value of a column together, for a grouping of large rows."""

    def kept(self) -> Self:
        """Return the frame, computed once at the latest when it is first used, until `release`."""

    def release(self) -> None:
        """Give the memory of `kept` back."""

    def collect(self) -> list[dict[str, Any]]:
        """Return all rows by the names of their columns."""

    def count(self) -> int:
        """Return the number of rows."""

    def is_empty(self) -> bool:
        """Return whether there is no row."""


class Keep(Protocol):
    """The rows that one step has read, and the lines that it has screened: beside the run, or until it ends.

    With both, a range is read exactly once. A second reading would see other rows, above all in the fence tables,
    which are read once before the ends are frozen and once after.
    """

    is_landed: bool

    def read(self, wanted: Wanted, settings: AuditSection) -> None:
        """Read ranges now, each once, and keep their rows; a range that cannot be read becomes a gap."""

    def rows(self) -> Any:
        """Return all rows that were read, as a frame."""

    def lines(self, frame: Any) -> Any:
        """Keep one line per transaction, those in doubt in a separate part, and return the kept lines."""


class Engine(Protocol):
    """Computes frames on this machine or on a cluster."""

    name: str

    def close(self) -> None:
        """Give back what this process has made for it: memory, temporary files, a Spark session; idempotent."""

    def keep(self, store: Store, number: int, *, is_landed: bool = True) -> Keep:
        """Return the empty rows of a run; without *is_landed* they are gone after the step."""

    def read(self, places: Sequence[str]) -> Any:
        """Return the landed rows in these places of a store, as a frame; no rows without places."""

    def write(self, frame: Any, place: str) -> Any:
        """Write a frame to a place of a store, and return it from there."""

    def expect(self, records: int) -> None:
        """Prepare for a step over this number of records."""

    def for_few_rows(self) -> AbstractContextManager[None]:
        """Within the block, compute frames of few rows and many columns."""

    def tasks(self, known: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Return the number of done tasks, and of all, of each part of the work that runs, and of the *known* parts."""


Say = Callable[[str], None]
