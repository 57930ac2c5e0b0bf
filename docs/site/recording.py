"""Records a command as an animated picture: `python docs/site/recording.py FILE COMMAND…`, or `make recording`.

The command runs in a terminal of its own. The picture plays its real output, in `PLAYED_S` at most, and ends
with the last screen. Readers that want no motion see the last screen only.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import sys
import termios
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

COLUMNS: Final = 78
FRAME_S: Final = 0.25
"""Least time between two pictures of the screen."""
QUIET_S: Final = 0.02
"""Time without output after which the screen is not in the middle of a change."""
PLAYED_S: Final = 9.0
WIDE: Final = 8.43
HIGH: Final = 19
TOP: Final = 44
LEFT: Final = 18
STYLE: Final = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
text { fill: #1c2b33 } .page { fill: #f6f8f9; stroke: #d5dde1 } .dot { fill: #c3ced3 } .b { font-weight: 700 }
.c1 { fill: #b3261e } .c2 { fill: #1a7f37 } .c3 { fill: #8a6100 } .c0 { fill: #75858d }
.r, .f { visibility: hidden; animation-name: on; animation-timing-function: step-end }
.f { animation-fill-mode: forwards }
@keyframes on { from, to { visibility: visible } }
@media (prefers-reduced-motion: reduce) { .r, .f { animation: none } .f { visibility: visible } }
@media (prefers-color-scheme: dark) {
text { fill: #e3eaed } .page { fill: #131719; stroke: #36434a } .dot { fill: #4b5a62 }
.c1 { fill: #ff8a80 } .c2 { fill: #6fdc8c } .c3 { fill: #e6c35c } .c0 { fill: #83949c }
}
"""
COLOURS: Final = {31: "c1", 91: "c1", 32: "c2", 33: "c3", 90: "c0", 2: "c0"}
ESCAPE: Final = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")

Cell = tuple[str, str]


@dataclass(slots=True)
class Terminal:
    """What a terminal shows after some output; it knows the few sequences that Rich's progress bars use."""

    rows: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    is_bold: bool = False
    colour: str = ""

    def feed(self, text: str) -> None:
        """Take output."""
        place = 0
        while place < len(text):
            if found := ESCAPE.match(text, place):
                self._obey(found[1], found[2])
                place = found.end()
                continue
            self._put(text[place])
            place += 1

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
            self.rows += [[] for _ in range(self.row + 1 - len(self.rows))]
        elif character >= " ":
            row = self.rows[self.row]
            row += [(" ", "")] * (self.column + 1 - len(row))
            row[self.column] = (character, f"{'b ' if self.is_bold else ''}{self.colour}".strip())
            self.column += 1

    def _obey(self, numbers: str, letter: str) -> None:
        if letter == "A":
            self.row = max(0, self.row - int(numbers or 1))
        elif letter == "K":
            self.rows[self.row] = []
        elif letter == "m":
            for number in map(int, (numbers or "0").split(";")):
                self.is_bold = number == 1 or (self.is_bold and number != 0)
                self.colour = COLOURS.get(number, "" if number == 0 else self.colour)

    def spans(self, number: int) -> str:
        """Return a row as the content of a text element."""
        made, cells = "", self.rows[number] if number < len(self.rows) else []
        while cells and cells[-1][0] == " ":
            cells = cells[:-1]
        for style, text in _runs(cells):
            made += (
                f'<tspan class="{style}">{escape(text, quote=False)}</tspan>' if style else escape(text, quote=False)
            )
        return made


def _runs(cells: list[Cell]) -> list[tuple[str, str]]:
    runs: list[tuple[str, str]] = []
    for character, style in cells:
        if runs and runs[-1][0] == style:
            runs[-1] = (style, runs[-1][1] + character)
        else:
            runs.append((style, character))
    return runs


def recorded(command: list[str]) -> list[tuple[float, list[str]]]:
    """Run a command in a terminal; returns its screens, each with the second in which it appeared.

    Raises:
        SystemExit: the command failed, so that no picture shows a failure by accident.
    """
    child, place = pty.fork()
    if not child:
        os.environ.update(TERM="xterm-16color", COLUMNS=str(COLUMNS))
        os.execvp(command[0], command)  # noqa: S606 - the caller's own command
    fcntl.ioctl(place, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    terminal, began_s, left = Terminal(), time.monotonic(), ""
    screens: list[tuple[float, list[str]]] = []
    while True:
        try:
            data = os.read(place, 65_536).decode(errors="replace")
        except OSError:  # the end of a terminal, on Linux
            break
        if not data:
            break
        left += data
        whole = left if not re.search(r"\x1b\[?[?\d;]*\Z", left) else ""
        terminal.feed(whole)
        left = "" if whole else left
        now_s = time.monotonic() - began_s
        is_whole = not select.select([place], [], [], QUIET_S)[0]
        if is_whole and (not screens or now_s - screens[-1][0] >= FRAME_S):
            screens.append((now_s, [terminal.spans(number) for number in range(len(terminal.rows))]))
    screens.append((time.monotonic() - began_s, [terminal.spans(number) for number in range(len(terminal.rows))]))
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"the command ended with {status}")
    return screens


def picture(command: list[str], screens: list[tuple[float, list[str]]]) -> str:
    """Return the animated picture."""
    pace = min(1.0, PLAYED_S / screens[-1][0])
    shown: list[str] = []
    for number in range(max(len(rows) for _, rows in screens)):
        versions: list[tuple[float, str]] = []
        for at_s, rows in screens:
            text = rows[number] if number < len(rows) else ""
            if not versions or versions[-1][1] != text:
                versions.append((at_s * pace, text))
        for index, (at_s, text) in enumerate(versions):
            if not text:
                continue
            is_last = index == len(versions) - 1
            lasting_s = 0.01 if is_last else versions[index + 1][0] - at_s
            timing = f"animation-delay:{at_s:.2f}s;animation-duration:{lasting_s:.2f}s"
            y = TOP + HIGH * (number + 2)
            shown.append(f'<text class="{"f" if is_last else "r"}" x="{LEFT}" y="{y}" style="{timing}">{text}</text>')
    last = max(number for number, text in enumerate(screens[-1][1]) if text)
    wide, high = round(2 * LEFT + COLUMNS * WIDE), TOP + HIGH * (last + 3)
    size = f'width="{wide}" height="{high}"'
    title = escape(f"The output of {shlex.join(command)}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" {size} role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{wide - 1}" height="{high - 1}" rx="8"/>',
            *(f'<circle class="dot" cx="{22 + 20 * each}" cy="20" r="6"/>' for each in range(3)),
            f'<text x="{LEFT}" y="{TOP + HIGH}"><tspan class="c0">$ </tspan>{escape(shlex.join(command))}</text>',
            *shown,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(sys.argv[2:], recorded(sys.argv[2:])), encoding="utf-8")
