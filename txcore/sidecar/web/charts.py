"""Line charts as numbers for a template: paths, ticks and labels; nothing is drawn here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 360
HEIGHT: Final = 150
LEFT: Final = 44
RIGHT: Final = 10
TOP: Final = 10
BOTTOM: Final = 22
X_TICKS: Final = 4
Y_TICKS: Final = 3
ALMOST: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Series:
    """Values in time, oldest first; None where a value is missing."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """A series as a path; `style` numbers its colour and dashes."""

    name: str
    style: int
    path: str
    latest: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A position on an axis, and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart for the template; `summary` describes it as text, `rows` holds every figure."""

    key: str
    title: str
    lines: Sequence[Line]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    summary: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(line.path for line in self.lines)


def make_chart(
    key: str, title: str, series: Sequence[Series], range_s: float, show: Callable[[float], str], nothing: str
) -> Chart:
    """Return a chart.

    Args:
        show: Returns a value as text, with its unit.
        nothing: The text for a missing value.
    """
    top = nice_top(max((value for each in series for value in each.values if value is not None), default=0.0))
    lines = [
        Line(each.name, number, _path(each.values, top), _latest(each.values, show, nothing))
        for number, each in enumerate(series)
    ]
    y_ticks = [Tick(_y(top * n / Y_TICKS, top), show(top * n / Y_TICKS)) for n in range(Y_TICKS + 1)]
    x_ticks = [
        Tick(LEFT + (WIDTH - LEFT - RIGHT) * n / X_TICKS, _ago(range_s * (X_TICKS - n) / X_TICKS))
        for n in range(X_TICKS + 1)
    ]
    count = len(series[0].values)
    rows = [
        [_ago(range_s * (count - 1 - n) / count), *(nothing if v is None else show(v) for v in values)]
        for n, values in enumerate(zip(*(each.values for each in series), strict=True))
        if any(value is not None for value in values)
    ]
    summary = f"{title}, latest: " + ", ".join(f"{line.name} {line.latest}" for line in lines)
    return Chart(key, title, lines, x_ticks, y_ticks, summary, ["ago", *(each.name for each in series)], rows)


def nice_top(value: float) -> float:
    """Return the next of 3, 6, 15 times a power of ten, so that the ticks are readable numbers."""
    if value < ALMOST:
        return 3.0
    power = 10.0 ** math.floor(math.log10(value / 3))
    return next(power * each for each in (3, 6, 15, 30) if power * each >= value * (1 - ALMOST))


def _path(values: Sequence[float | None], top: float) -> str:
    """Return an SVG path; a value alone between two gaps becomes a short dash."""
    parts: list[str] = []
    width = (WIDTH - LEFT - RIGHT) / max(len(values), 1)
    was_there = False
    for number, value in enumerate(values):
        if value is not None:
            x, y = LEFT + (number + 0.5) * width, _y(value, top)
            parts.append(f"{'L' if was_there else 'M'}{x:.1f} {y:.1f}")
            is_alone = not was_there and (number + 1 == len(values) or values[number + 1] is None)
            if is_alone:
                parts.append(f"h{width / 2:.1f}")
        was_there = value is not None
    return "".join(parts)


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top, 1)


def _latest(values: Sequence[float | None], show: Callable[[float], str], nothing: str) -> str:
    value = next((each for each in reversed(values) if each is not None), None)
    return nothing if value is None else show(value)


def _ago(seconds: float) -> str:
    if seconds < 1:
        return "now"
    return f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:.0f} s"
