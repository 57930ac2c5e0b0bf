"""Charts as SVG text: lines over time, bars, and bars of coverage. A page needs nothing else to show them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 860
HEIGHT: Final = 220
LEFT: Final = 70
RIGHT: Final = 16
TOP: Final = 14
BOTTOM: Final = 34
COLOURS: Final = ("#2563a8", "#c2571a", "#2f8f5b", "#8a4fa3", "#7a7a7a")
Label = Callable[[float], str]


def number(value: float) -> str:
    """Return a short form of a count."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def duration(milliseconds: float) -> str:
    """Return a short form of a duration."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if milliseconds >= size:
            return f"{milliseconds / size:.3g} {unit}"
    return f"{milliseconds:.3g} ms"


def lines(title: str, marks: Sequence[str], series: Mapping[str, Sequence[float]], label: Label = number) -> str:
    """Return a line chart; *marks* name the places on the horizontal axis, from left to right."""
    top = max((value for values in series.values() for value in values), default=0) or 1
    span = max(len(marks) - 1, 1)
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(place: int) -> float:
        return LEFT + (inner_width * place / span if len(marks) > 1 else inner_width / 2)

    def y(value: float) -> float:
        return TOP + inner_height * (1 - value / top)

    parts = [_axes(top, label)]
    for place in sorted({0, span // 2, len(marks) - 1}):
        if 0 <= place < len(marks):
            anchor = "start" if place == 0 and len(marks) > 1 else "end" if place == span else "middle"
            parts.append(_text(x(place), HEIGHT - 12, marks[place], anchor))
    for place, (name, values) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        dash = ' stroke-dasharray="7 4"' if place == 1 else ' stroke-dasharray="2 3"' if place > 1 else ""
        points = " ".join(f"{x(n):.1f},{y(value):.1f}" for n, value in enumerate(values))
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dash} points="{points}"/>')
        if len(values) == 1:
            parts.append(f'<circle cx="{x(0):.1f}" cy="{y(values[0]):.1f}" r="{6 - place}" fill="{colour}"/>')
        left = LEFT + 10 + 150 * place
        parts.append(f'<line x1="{left}" x2="{left + 22}" y1="8" y2="8" stroke="{colour}" stroke-width="3"{dash}/>')
        parts.append(_text(left + 27, 12, name, "start"))
    return _figure(title, HEIGHT, "".join(parts))


def bars(title: str, values: Mapping[str, float], label: Label = number, *, is_log: bool = False) -> str:
    """Return horizontal bars, one per name; with *is_log* small ones stay visible beside large ones."""
    top = max(values.values(), default=0) or 1
    row, left = 24, 190
    parts = []
    for place, (name, value) in enumerate(values.items()):
        share = math.log1p(value) / math.log1p(top) if is_log else value / top
        width, y = max((WIDTH - left - 110) * share, 1 if value else 0), 6 + place * row
        parts.append(_text(left - 8, y + 14, name, "end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="16" fill="{COLOURS[0]}"/>')
        parts.append(_text(left + width + 6, y + 13, label(value), "start"))
    return _figure(title, 12 + row * max(len(values), 1), "".join(parts))


def coverage(title: str, ranges: Sequence[tuple[str, float, float, bool]]) -> str:
    """Return one bar per partition: its name, the shares lost and read, and a colour for whether it is whole."""
    row, left = 20, 300
    inner = WIDTH - left - 20
    parts = []
    for place, (name, gone, read, is_well) in enumerate(ranges):
        y = 4 + place * row
        parts.append(_text(left - 8, y + 12, name, "end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{inner}" height="13" fill="#e3e3e3"/>')
        width = max(inner * (read - gone), 0)
        colour = COLOURS[2] if is_well else COLOURS[1]
        parts.append(f'<rect x="{left + inner * gone:.1f}" y="{y}" width="{width:.1f}" height="13" fill="{colour}"/>')
    return _figure(title, 8 + row * max(len(ranges), 1), "".join(parts))


def _axes(top: float, label: Label) -> str:
    parts = []
    for share in (0, 0.5, 1):
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d5d5d5"/>')
        parts.append(_text(LEFT - 6, y + 4, label(top * share), "end"))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _figure(title: str, height: int, content: str) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">{content}</svg>'
        "</figure>"
    )
