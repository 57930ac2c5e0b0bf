"""What flows yield and drivers carry out."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from txcore.records import HalfRecord, Resolution

R = TypeVar("R")


@dataclass(slots=True)
class Call:
    """Call `function(*args)`; where the driver has a pool, in it, given up after `deadline_s` seconds."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    deadline_s: float | None = None


@dataclass(slots=True)
class Spawn:
    """Run *flow* beside the yielding one."""

    flow: Flow[None]


Command: TypeAlias = "HalfRecord | Resolution | Call | Spawn | Future[Any] | float"
Flow: TypeAlias = Generator[Command, Any, R]
