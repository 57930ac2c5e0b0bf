"""The audit's progress: bars on a terminal, lines elsewhere, never on standard output."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

from rich.console import Console
from txcore_spark.progress import LINE_EVERY_S, Progress

WIDTH = 80


class Tracker:
    """A fake of an engine's tasks."""

    def __init__(self):
        self.stages = {}

    def tasks(self, known):
        return {number: counts for number, counts in self.stages.items() if number in known or counts[0] < counts[1]}


class Hours:
    """A clock that the test advances."""

    now_s = 0.0

    def elapsed_s(self):
        return self.now_s


def shown(**console):
    """Return a progress, the text that it writes to, and its clock."""
    file, clock = io.StringIO(), Hours()
    return Progress(Console(file=file, width=WIDTH, highlight=False, **console), clock), file, clock


def play(progress, clock):
    """Play a step of two phases, with a display in the middle of each."""
    tracker = Tracker()
    progress.say("starting Spark")
    with progress.step(tracker.tasks) as say:
        say("reading 12 ranges of 4 partitions")
        tracker.stages[0] = (7, 12)
        clock.now_s += LINE_EVERY_S
        progress.look()
        tracker.stages[0] = (12, 12)
        progress.look()
        say("verdicts")
        tracker.stages |= {1: (16, 16), 2: (1, 4)}
        clock.now_s += LINE_EVERY_S
        progress.look()
        progress._bars and progress._bars.refresh()
    return tracker


def test_a_terminal_has_a_bar_per_phase_that_fits(monkeypatch):
    """The bar counts ranges, then the tasks of the current phase; each phase leaves one line with its time."""
    monkeypatch.setenv("TERM", "xterm")
    progress, file, clock = shown(force_terminal=True, color_system=None)
    play(progress, clock)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    lines = re.split(r"[\r\n]+", plain)
    assert any("verdicts" in line and "1 of 4 tasks" in line for line in lines)
    assert "txcore audit: reading 12 ranges of 4 partitions, 30.0 s" in lines
    assert "txcore audit: verdicts, 30.0 s" in lines
    assert all(len(line) <= WIDTH for line in lines)


def test_a_pipe_has_plain_lines():
    """A line is printed when a phase begins, and a line with its progress from time to time."""
    progress, file, clock = shown()
    play(progress, clock)
    assert [
        "txcore audit: starting Spark",
        "txcore audit: reading 12 ranges of 4 partitions",
        "txcore audit: reading 12 ranges of 4 partitions: 7 of 12 ranges",
        "txcore audit: verdicts",
        "txcore audit: verdicts: 1 of 4 tasks",
    ] == file.getvalue().splitlines()


def test_ended_engine_stops_only_the_bar():
    """The step itself reports the error."""
    progress, file, _ = shown()
    with progress.step(lambda _: 1 / 0) as say:
        say("verdicts")
        progress._watch(SimpleNamespace(wait=lambda _: False))
    assert "verdicts" in file.getvalue()
