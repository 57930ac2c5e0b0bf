"""Interrupt a call at each place where Python runs a signal's handler, one place per call."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, Final

_CHECKED: Final = ("RESUME", "CALL")
_JUMPS: Final = ("JUMP_BACKWARD", "POP_JUMP_BACKWARD")
"""How the names of the instructions begin after which CPython looks for signals; after a jump, this is its target."""
Place = tuple[CodeType, int]
"""A function's code, and the offset of the instruction before which the handler runs."""


class Interrupts:
    """Raises an exception in the calling thread at a place that was not tried before.

    A timer finds a place only by luck, where a call spends its time; a lock that is kept needs one of thousands.
    The places come from the interpreter's own instructions, of the library under test and of all that it calls.

    Attributes:
        tried: The places at which an exception was raised.
        place: The newest of them, for a report.
    """

    def __init__(self, error: type[BaseException]) -> None:
        self.tried: set[Place] = set()
        self.place = ""
        self._error = error
        self._places: dict[CodeType, frozenset[int]] = {}

    def during(self, call: Callable[[], object]) -> None:
        """Call, and raise at most once: at the first place that was not tried before.

        This is no block of a `with`, of which the end would be a place, too: the collector would end its trace at any
        later time, and a trace that ends while the interpreter calls it breaks the interpreter.
        """
        before = sys.gettrace()
        # From Python 3.12 on, a trace has instructions only if a frame asked for them before it began.
        sys._getframe().f_trace_opcodes = True  # noqa: SLF001
        sys.settrace(self._called)
        try:
            call()
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:  # noqa: ARG002
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:  # noqa: ARG002
        if event == "opcode" and (place := (frame.f_code, frame.f_lasti)) not in self.tried and self._is_place(*place):
            self.tried.add(place)
            self.place = f"{frame.f_code.co_qualname}, {frame.f_code.co_filename}:{frame.f_lineno}"
            raise self._error
        return self._stepped

    def _is_place(self, code: CodeType, offset: int) -> bool:
        places = self._places.get(code)
        if places is None:
            steps = list(dis.get_instructions(code))
            after = [there.offset for here, there in pairwise(steps) if _is_checked(here)]
            back = [step.argval for step in steps if step.opname.startswith(_JUMPS)]
            places = self._places[code] = frozenset(after + back)
        return offset in places


def _is_checked(step: dis.Instruction) -> bool:
    return step.opname.startswith(_CHECKED)
