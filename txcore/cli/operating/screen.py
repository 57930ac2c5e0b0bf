"""An operator's output: results on standard output, the rest on standard error, progress on a terminal only."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from txcore.operator.formatting import harmless

if TYPE_CHECKING:
    from rich.status import Status

T = TypeVar("T")
_OBEYED: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
NARROW: Final = 12
"""Width of the widest column that is never folded; one of whole ids is not either, so that they can be copied."""
LAST_MIN: Final = 16
"""Least width that is left to the last column."""
ID_SIZE: Final = 36
GAP: Final = 2
ASKING: Final = "asking the database"
BAR_FROM: Final = 20
"""Least number of steps for which a progress bar is shown."""


class Screen:
    """The output of one command. What it shows for people has no character that a terminal obeys."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.out = Console(highlight=False)
        self.err = Console(stderr=True, highlight=False)
        self._status: Status | None = None

    @property
    def can_ask(self) -> bool:
        """Whether a user can answer on a terminal."""
        return sys.stdin.isatty() and self.err.is_terminal

    def say(self, text: str = "", style: str = "") -> None:
        """Write a line of the result for people; nothing with `--json`."""
        if not self.as_json:
            self.out.print(harmless(text), style=style or None, markup=False, soft_wrap=False)

    def hang(self, label: str, text: str) -> None:
        """Write *text* next to *label*, its further lines indented below its first one."""
        if self.as_json:
            return
        width = max(self.out.width - len(label), 20)
        for number, line in enumerate(Text(harmless(text)).wrap(self.out, width)):
            line.rstrip()
            self.out.print(Text(label if not number else " " * len(label)) + line, soft_wrap=True)

    def note(self, text: str) -> None:
        """Write a line that is not part of the result."""
        self.err.print(harmless(text), markup=False)

    def json(self, value: Any) -> None:
        """Write the result for programs."""
        text = json.dumps(value, indent=2, ensure_ascii=False)  # which escapes no character from DEL on
        self.out.file.write(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
        """Write a table; its last column folds, and wide ones before it where nothing else fits."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        shown = [[harmless(cell) for cell in row] for row in rows]
        folded = _folded([max(map(len, column)) for column in zip(headings, *shown, strict=True)], self.out.width)
        for number, heading in enumerate(headings):
            justify: Any = "right" if heading in right else "left"
            table.add_column(heading, justify=justify, no_wrap=number not in folded, overflow="fold")
        for row in shown:
            table.add_row(*map(Text, row))
        self.out.print(table)

    def reading(self, count: int) -> None:
        """Show the progress of a long reading."""
        if self._status is not None:
            self._status.update(f"reading the logs: {count:,} records")

    @contextmanager
    def busy(self, text: str = "reading the logs") -> Iterator[None]:
        """Show on a terminal that the command is working; `sys.stdout` is the terminal meanwhile, `out` is not."""
        if not self.err.is_terminal:
            yield
            return
        if self._status is not None:
            self._status.update(text)
            yield
            return
        with self.err.status(text) as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None

    def awaited(self, items: Iterable[T], text: str) -> Iterator[T]:
        """Yield *items*, and show on a terminal that the command is working on the next one."""
        coming = iter(items)
        while True:
            with self.busy(text):
                try:
                    item = next(coming)
                except StopIteration:
                    return
            yield item

    def steps(self, items: Sequence[T], text: str) -> Iterator[T]:
        """Yield *items* with a progress bar, if there are many and this is a terminal."""
        if len(items) < BAR_FROM or not self.err.is_terminal:
            yield from items
            return
        with self.bar(len(items), text) as advance:
            for item in items:
                yield item
                advance()

    @contextmanager
    def bar(self, count: int, text: str) -> Iterator[Any]:
        """Show a progress bar on a terminal; yields a function that advances it by one."""
        if count < BAR_FROM or not self.err.is_terminal:
            yield lambda: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.err, transient=True) as progress:
            task = progress.add_task(text, total=count)
            yield lambda: progress.advance(task)


def _folded(widths: Sequence[int], space: int) -> set[int]:
    """Return the columns of a table that fold, so that it fits into *space*: the last one, and then the widest."""
    folded, last = set[int](), len(widths) - 1
    taken = sum(widths[:-1]) + GAP * last + LAST_MIN
    for number in sorted(range(last), key=lambda number: -widths[number]):
        if taken > space and widths[number] > NARROW and widths[number] != ID_SIZE:
            folded.add(number)
            taken -= widths[number] - NARROW
    return folded | {last}
