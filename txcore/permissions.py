"""The rights of a broker's user: what a plugin is asked for by `txcore permissions`."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from txcore.enums import direct


@direct
class Role(enum.Enum):
    """The programs that use the broker under one user's name."""

    PRODUCER = "producer"  #: appends halves, publishes to targets, writes ops; reads no half
    CHECKER = "checker"  #: a checker, an operator's command or the doctor: reads every log of its group


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The question for the rights of one user: the least that its role needs, and nothing of another group.

    Attributes:
        user: The user's name on the broker.
        group: The producer group.
        role: The user's role in it.
        targets: The target topics, in the URL's broker's own terms, to which the group publishes.
        creates: Whether the user may also create the group's objects; else another user creates them first.
    """

    user: str
    group: str
    role: Role
    targets: Sequence[str] = ()
    creates: bool = False
