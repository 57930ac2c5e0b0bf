"""The line of the user's own program at which a step is reached: the innermost frame that belongs to no library."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from pathlib import Path
from types import FrameType

import msgspec

import txcore
from txcore_conformance.failpoints import Failpoints


class Line(msgspec.Struct, frozen=True):
    """A line of a program: its file, its number and its text; all empty where none was found."""

    file: str = ""
    number: int = 0
    text: str = ""

    def __str__(self) -> str:
        """Return `file:line`, the file relative to the current folder where it is in there."""
        if not self.file:
            return ""
        path = Path(self.file)
        return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{self.number}"


class Located(Failpoints):
    """Failpoints that know the user's line of each step.

    Args:
        program: The file of the scenario; files beside it are the user's, wherever they are.
    """

    def __init__(self, program: str, chosen: str = "") -> None:
        super().__init__(chosen)
        self.lines: list[Line] = []
        self._program = Path(program).parent
        paths = sysconfig.get_paths()
        libraries = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        packages = [package.__file__ for name, package in sys.modules.items() if _is_of_txcore(name)]
        libraries += [str(Path(file).parent) for file in packages if file]
        self._libraries = tuple({str(Path(folder)) + "/" for folder in libraries})
        self._last: dict[str, Line] = {}

    def reach(self, name: str) -> None:
        """See `Failpoints.reach`; keeps the line of a step that is listed."""
        before = len(self.steps)
        super().reach(name)
        if len(self.steps) == before:
            return
        moment, _, command = name.partition(" ")
        # In asyncio the event loop hands a batch over: no frame of the user's is below it.
        line = self._last[command] if moment == "during" and command in self._last else self._here()
        self._last[command] = line
        self.lines.append(line)

    def _here(self) -> Line:
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the frames are the object
        while frame is not None:
            file = frame.f_code.co_filename
            if self._is_users(file):
                return Line(file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip())
            frame = frame.f_back
        return Line()

    def _is_users(self, file: str) -> bool:
        if file.startswith("<"):
            return False
        return Path(file).parent == self._program or not file.startswith(self._libraries)


def _is_of_txcore(name: str) -> bool:
    return name == txcore.__name__ or (name.startswith("txcore_") and "." not in name)
