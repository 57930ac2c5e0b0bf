"""Draws the documents' sequence diagrams: `python docs/site/pictures.py`, or `make pictures`.

Each `docs/pictures/NAME.txt` becomes `NAME.svg` beside it; a test compares them. A source has one step a line:

    lane service Your service           a column; its name in the steps, then its heading
    service -> database: COMMIT         an arrow, solid; `-->` is dashed, for an answer
    service x: killed                   the lane ends here
    database: the row is there          a note on a lane
    band good: killed here: published   a background with a caption, up to the next `band` or `end`

An SVG has both colour schemes, and the reader's system, or the page around it, chooses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "pictures"
LANE: Final = 205
MARGIN: Final = 14
HEAD: Final = 40
STEP: Final = 45
LINE: Final = 17
CHARACTER: Final = 7.2
"""Mean width of a character of the text, in pixels; headings are wider."""
STYLE: Final = """
text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1c2b33 }
.page { fill: #ffffff } .frame { stroke: #d5dde1 } .head { fill: #0b5c6b } .name { fill: #ffffff; font-weight: 600 }
.life { stroke: #9fb0b8 } .arrow { stroke: #1c2b33 } .tip { fill: #1c2b33 } .note { fill: #fff3cd; stroke: #d9b84a }
.dead { stroke: #b3261e } .lost { fill: #b3261e; font-weight: 600 }
.good { fill: #e3f4e7 } .bad { fill: #fbe7e5 } .caption { font-size: 13px; font-style: italic }
@media (prefers-color-scheme: dark) {
text { fill: #e3eaed } .page { fill: #131719 } .frame { stroke: #36434a } .head { fill: #1b7384 }
.life { stroke: #5b6b73 } .arrow { stroke: #e3eaed } .tip { fill: #e3eaed } .note { fill: #463b14; stroke: #a58a2f }
.dead { stroke: #ff8a80 } .lost { fill: #ff8a80 } .good { fill: #1a3322 } .bad { fill: #3b1f1d }
}
"""
BAND: Final = re.compile(r"band (good|bad): (.+)")
ARROW: Final = re.compile(r"(\w+) (--?>) (\w+): (.+)")
DEATH: Final = re.compile(r"(\w+) x: (.+)")
NOTE: Final = re.compile(r"(\w+): (.+)")


@dataclass(slots=True)
class Drawing:
    """A picture while it is made: elements below the lanes, and above them."""

    lanes: dict[str, tuple[int, str]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    below: list[str] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    title: str = ""
    y: int = HEAD + 2 * MARGIN
    band: tuple[str, int] | None = None

    @property
    def width(self) -> int:
        """Width of the picture in pixels."""
        return 2 * MARGIN + LANE * len(self.lanes)

    def take(self, line: str) -> None:
        """Add one line of the source."""
        if line.startswith("title "):
            self.title = line.removeprefix("title ")
        elif line.startswith("lane "):
            _, name, heading = line.split(" ", 2)
            self.lanes[name] = (MARGIN + LANE * len(self.lanes) + LANE // 2, heading)
        elif found := BAND.fullmatch(line):
            self._end_band()
            self.band = (found[1], self.y)
            self._say(found[2], MARGIN + 8, self.y + LINE, (self.width - 2 * MARGIN) / CHARACTER, "caption", "start")
            self.y += LINE * (1 + len(self._wrapped(found[2], (self.width - 2 * MARGIN) / CHARACTER))) - 4
        elif line == "end":
            self._end_band()
        elif found := ARROW.fullmatch(line):
            self._arrow(found[1], found[3], found[4], is_answer=found[2] == "-->")
        elif found := DEATH.fullmatch(line):
            self._death(found[1], found[2])
        elif found := NOTE.fullmatch(line):
            self._note(found[1], found[2])
        else:
            raise ValueError(f"no step of a picture: {line!r}")

    def _arrow(self, start: str, end: str, text: str, *, is_answer: bool) -> None:
        first, last = self.lanes[start][0], self.lanes[end][0]
        lines = self._wrapped(text, (abs(last - first) - 16) / CHARACTER)
        for number, each in enumerate(lines):
            self.above.append(_text(each, (first + last) // 2, self.y + LINE * (number + 1) - 4))
        self.y += LINE * len(lines) + 4
        tip = 9 if last > first else -9
        dashes = ' stroke-dasharray="5 4"' if is_answer else ""
        self.above += [
            f'<path class="arrow" d="M{first} {self.y}H{last - tip}" stroke-width="1.6"{dashes}/>',
            f'<path class="tip" d="M{last} {self.y}l{-tip} -5v10z"/>',
        ]
        self.y += STEP - LINE - 14

    def _death(self, lane: str, text: str) -> None:
        x = self.lanes[lane][0]
        self.y += 8
        self.ends[lane] = self.y
        self.above.append(f'<path class="dead" d="M{x - 8} {self.y - 8}l16 16m0 -16l-16 16" stroke-width="3"/>')
        self.above.append(_text(text, x + 14, self.y + 5, "lost", "start"))
        self.y += 26

    def _note(self, lane: str, text: str) -> None:
        x, lines = self.lanes[lane][0], self._wrapped(text, (LANE - 26) / CHARACTER)
        high = LINE * len(lines) + 10
        self.above.append(
            f'<rect class="note" x="{x - LANE // 2 + 6}" y="{self.y}" width="{LANE - 12}" height="{high}" rx="4"/>'
        )
        for number, each in enumerate(lines):
            self.above.append(_text(each, x, self.y + LINE * (number + 1) + 1))
        self.y += high + 12

    def _say(self, text: str, x: int, y: int, columns: float, kind: str, anchor: str) -> None:
        for number, each in enumerate(self._wrapped(text, columns)):
            self.above.append(_text(each, x, y + LINE * number, kind, anchor))

    def _end_band(self) -> None:
        if self.band:
            kind, top = self.band
            size = f'x="{MARGIN}" y="{top}" width="{self.width - 2 * MARGIN}" height="{self.y - top}"'
            self.below.append(f'<rect class="{kind}" {size} rx="6"/>')
            self.y += 8
        self.band = None

    @staticmethod
    def _wrapped(text: str, columns: float) -> list[str]:
        lines = [""]
        for word in text.split():
            if lines[-1] and len(lines[-1]) + 1 + len(word) > columns:
                lines.append(word)
            else:
                lines[-1] = f"{lines[-1]} {word}".strip()
        return lines

    def svg(self) -> str:
        """Return the finished picture."""
        self._end_band()
        high, heads = self.y + MARGIN, []
        size = f'width="{self.width}" height="{high}"'
        label = f'role="img" aria-label="{escape(self.title)}"'
        for name, (x, heading) in self.lanes.items():
            end = self.ends.get(name, self.y)
            box = f'x="{x - LANE // 2 + 8}" y="{MARGIN}" width="{LANE - 16}" height="{HEAD - 6}"'
            heads += [
                f'<path class="life" d="M{x} {MARGIN + HEAD - 6}V{end}" stroke-dasharray="2 4"/>',
                f'<rect class="head" {box} rx="6"/>',
                _text(heading, x, MARGIN + 22, "name"),
            ]
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {high}" {size} {label}>',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                f'<rect class="page frame" x="0.5" y="0.5" width="{self.width - 1}" height="{high - 1}" rx="8"/>',
                *self.below,
                *heads,
                *self.above,
                "</svg>\n",
            ]
        )


def _text(text: str, x: int, y: int, kind: str = "", anchor: str = "middle") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x}" y="{y}" text-anchor="{anchor}">{escape(text, quote=False)}</text>'


def drawn(source: Path) -> str:
    """Return the SVG of a source."""
    drawing = Drawing()
    for line in source.read_text(encoding="utf-8").splitlines():
        if line.strip():
            drawing.take(line.strip())
    return drawing.svg()


def sources() -> list[Path]:
    """Return the sources of all pictures."""
    return sorted(FOLDER.glob("*.txt"))


if __name__ == "__main__":
    for each in sources():
        each.with_suffix(".svg").write_text(drawn(each), encoding="utf-8")
