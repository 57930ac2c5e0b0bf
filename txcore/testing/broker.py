"""The broker of a kit: where the kit has a checker, a checker that the service runs by itself owns nothing.

It would decide in a thread of its own and by the real clock, while the test moves another one.
"""

from __future__ import annotations

from typing import Final

from txcore.clock import Clock
from txcore.memory import MemoryBroker, Profile
from txcore.memory.broker import Member

KIT_MEMBER: Final = "kit"
"""The name of a kit's checker in its group."""


class KitBroker(MemoryBroker):
    """A memory broker that leaves the partitions of some groups to the kit's checkers."""

    def __init__(self, profile: Profile, clock: Clock) -> None:
        super().__init__(profile, clock=clock)
        self._reserved: set[str] = set()

    def reserve(self, group: str) -> None:
        """Take the partitions of *group* from all other checkers, now and later; idempotent."""
        with self.lock:
            self._reserved.add(group)
            for member in self._members[group].copy():
                if member != KIT_MEMBER:
                    self.leave(group, member)

    def join(self, claim: Member) -> None:
        """Add a member, unless the group is the kit's and the member is not: that one stays a spare."""
        with self.lock:
            if claim.member == KIT_MEMBER or claim.group not in self._reserved:
                super().join(claim)
