"""One difference that a comparison of two sides has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """One row or message that is not right.

    Attributes:
        verdict: Name of the verdict.
        name: The id as the table or the message gives it.
        topic: The topic that the row names, or where the message is; empty for none.
        what: What differs, in words.
    """

    verdict: str
    name: str
    topic: str
    what: str
