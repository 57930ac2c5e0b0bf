"""The reason why a database could not be read, in one line."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError


def first_line(error: SQLAlchemyError) -> str:
    """Return the first line of the driver's own text, or the kind of the error."""
    found = str(getattr(error, "orig", None) or error).strip().splitlines()
    return found[0] if found else type(error).__name__
