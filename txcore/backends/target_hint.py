"""The advice in the refusal of a message to a topic that does not exist."""

from __future__ import annotations

import shlex


def how_to_make(topic: str) -> str:
    """Return the command that makes a target topic."""
    return f"`txcore topics create --broker URL --target {shlex.quote(topic)}` makes it"
