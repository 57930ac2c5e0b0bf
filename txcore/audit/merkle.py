"""A Merkle tree over SHA-256: one root for many leaves, and the path that proves one leaf to belong to a root.

As in RFC 6962, leaves and nodes are hashed with different first bytes, so that no node passes for a leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, Literal, TypeAlias

_LEAF: Final = b"\0"
_NODE: Final = b"\1"
Side: TypeAlias = Literal["left", "right"]
LEFT: Final = "left"
RIGHT: Final = "right"


def leaf_hash(content: bytes) -> bytes:
    """Return the hash of a leaf."""
    return sha256(_LEAF + content).digest()


def root_of(leaves: Iterable[bytes]) -> bytes:
    """Return the root over hashes of leaves; without any, the hash of nothing."""
    level = list(leaves)
    while len(level) > 1:
        level = _above(level)
    return level[0] if level else sha256(b"").digest()


def path_of(leaves: Sequence[bytes], number: int) -> list[tuple[Side, bytes]]:
    """Return the path from leaf *number* to the root: the neighbour of each node on it, with the neighbour's side."""
    level, found = list(leaves), list[tuple[Side, bytes]]()
    while len(level) > 1:
        neighbour = number ^ 1
        if neighbour < len(level):
            found.append((LEFT if neighbour < number else RIGHT, level[neighbour]))
        level, number = _above(level), number // 2
    return found


def climbed(leaf: bytes, path: Iterable[tuple[Side, bytes]]) -> bytes:
    """Return the root to which a path leads from the hash of a leaf."""
    for side, neighbour in path:
        leaf = _node(neighbour, leaf) if side == LEFT else _node(leaf, neighbour)
    return leaf


def _above(level: Sequence[bytes]) -> list[bytes]:
    pairs = zip(level[::2], level[1::2], strict=False)
    return [_node(left, right) for left, right in pairs] + list(level[len(level) & ~1 :])


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(_NODE + left + right).digest()
