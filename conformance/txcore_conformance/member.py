"""A member of a group, as its owner sees it; and the rule that no two members hold one partition."""

from __future__ import annotations

from txcore.port import Claim
from txcore.records import ClaimEventKind


class Member:
    """A claim, and the partitions that its owner believes to hold.

    Attributes:
        held: The partitions held.
        revoking: Those of `held` that the member was asked to give up, and has not.
        heard: Every event so far.
    """

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.held: set[int] = set()
        self.revoking: set[int] = set()
        self.heard: list[tuple[ClaimEventKind, int]] = []

    @property
    def lost(self) -> int:
        """The number of partitions lost so far."""
        return sum(kind is ClaimEventKind.LOST for kind, _ in self.heard)

    def poll(self, *, obeys: bool = True) -> set[int]:
        """Apply the claim's events and return the partitions held now; a member that *obeys* gives up what it must."""
        for event in self.claim.poll():
            self.heard.append((event.kind, event.partition))
            if event.kind is ClaimEventKind.ASSIGNED:
                assert event.partition not in self.held
                self.held.add(event.partition)
            elif event.kind is ClaimEventKind.LOST:
                self.held.remove(event.partition)
                self.revoking.discard(event.partition)
            else:
                assert event.drain_s > 0
                self.revoking.add(event.partition)
            if event.kind is ClaimEventKind.REVOKING and obeys:
                self.held.remove(event.partition)
                self.revoking.remove(event.partition)
                self.claim.give_up(event.partition)
        return self.held


def shared_out(*members: Member) -> list[int]:
    """Poll all *members*; return their numbers of partitions in ascending order."""
    held = [set(member.poll()) for member in members]
    assert sum(map(len, held)) == len(set().union(*held)), "two members hold one partition"
    return sorted(map(len, held))
