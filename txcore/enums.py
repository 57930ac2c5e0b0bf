"""Enumerations whose members print as code names them, and are found as fast as any other object."""

from __future__ import annotations

import enum
from typing import TypeVar

E = TypeVar("E", bound=enum.Enum)


def direct(cls: type[E]) -> type[E]:
    """Let members print as `Class.MEMBER`, and store each on its class, as Python does since 3.12.

    Python 3.11 goes through a property and the metaclass's `__getattr__` instead, which takes five times as long, and
    a transaction looks up two dozen members. A member that equals no text and no number is hashed by its identity.
    """
    for name, member in cls.__members__.items():
        type.__setattr__(cls, name, member)
    cls.__repr__ = enum.Enum.__str__  # type: ignore[method-assign]
    if cls.__eq__ is object.__eq__:
        cls.__hash__ = object.__hash__  # type: ignore[method-assign]
    return cls
