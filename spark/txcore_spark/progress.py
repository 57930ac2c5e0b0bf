"""Progress of a step on standard error: a bar per phase on a terminal, plain lines elsewhere if they are wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from txcore.clock import Clock, SystemClock
from txcore_spark.frames import Say

Tasks = Callable[[Sequence[int]], Mapping[int, tuple[int, int]]]
LOOK_EVERY_S: Final = 0.25
LINE_EVERY_S: Final = 30.0
"""Time, in seconds, between two lines about the progress of a phase without a terminal."""
_BAR_WIDTH: Final = 16


class Progress:
    """Shows the phases of each step, and in each how many of its tasks are done; one task reads one range.

    Args:
        console: Console to print to; standard error by default.
        quiet: Show nothing.
    """

    def __init__(self, console: Console | None = None, clock: Clock | None = None, *, quiet: bool = False) -> None:
        self._console = console or Console(stderr=True, highlight=False, quiet=quiet)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._tasks: Tasks | None = None
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._text = ""
        self._began_s = self._shown_s = 0.0
        self._stages: dict[int, tuple[int, int]] = {}
        self._past: set[int] = set()

    @contextmanager
    def step(self, tasks: Tasks | None) -> Iterator[Say]:
        """Watch the engine's *tasks* (`Engine.tasks`), and yield the function that begins a phase."""
        stop = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(stop,), name="txcore-audit-progress", daemon=True)
        self._tasks = tasks
        if self._console.is_interactive:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(_BAR_WIDTH),
                TextColumn("{task.fields[shown]}"),
                TimeElapsedColumn(),
            )
            self._bars = Bars(*columns, console=self._console, transient=True)
            self._bars.start()
        watcher.start()
        try:
            yield self.say
        finally:
            stop.set()
            watcher.join()
            with self._lock:
                self._end_phase()
                if self._bars is not None:
                    self._bars.stop()
                    self._bars = None

    def say(self, text: str) -> None:
        """Begin a phase."""
        with self._lock:
            self._end_phase()
            self._text, self._began_s = text, self._clock.elapsed_s()
            self._shown_s = self._began_s
            if self._bars is None:
                self._line(text)
            else:
                self._task = self._bars.add_task(text, total=None, shown="")

    def look(self) -> None:
        """Ask the engine once how many tasks are done, and show it."""
        with self._lock:
            found = self._tasks(sorted(self._stages)) if self._tasks is not None else {}
            self._stages |= {number: counts for number, counts in found.items() if number not in self._past}
            done, total = (sum(each) for each in zip(*self._stages.values(), strict=True)) if self._stages else (0, 0)
            if self._text and total:
                self._show(done, total)

    def _show(self, done: int, total: int) -> None:
        what = "range" if self._text.startswith("reading") else "task"
        shown = f"{done:,} of {total:,} {what}{'s' if total > 1 else ''}"
        now_s = self._clock.elapsed_s()
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, total=total, shown=shown)
        elif now_s - self._shown_s >= LINE_EVERY_S:
            self._shown_s = now_s
            self._line(f"{self._text}: {shown}")

    def _end_phase(self) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
            self._bars.refresh()
            self._line(f"{self._text}, {self._clock.elapsed_s() - self._began_s:.1f} s")
        self._text, self._task = "", None
        # The tasks of a phase must not count for the next one.
        self._past |= self._stages.keys()
        self._stages = {}

    def _line(self, text: str) -> None:
        self._console.print(f"txcore audit: {text}", markup=False, soft_wrap=True)

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(LOOK_EVERY_S):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - the engine has ended, which the step itself reports; the bar is not needed
                return
