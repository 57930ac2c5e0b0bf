"""The bearer token in a file, for the driver: read when a client starts, and again before the token ends."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from txcore.clock import SystemClock
from txcore.errors import ConfigError

OPAQUE_S: Final = 60.0
"""Seconds after which a token is read again that is no JWT, and so does not say when it ends."""


class _Claims(msgspec.Struct):
    """What a JWT says of itself; the driver needs the end only, in seconds since the epoch."""

    exp: float | None = None


def file_tokens(path: str) -> Callable[[str], tuple[str, float]]:
    """Return the driver's `oauth_cb`: each call reads the file, and returns its token and the token's end.

    The driver calls it from a thread of its own after four fifths of the token's life, so that another program may
    renew the file, as Kubernetes does with its projected tokens.

    Raises:
        ConfigError: the file cannot be read, or holds no token; later, the driver reports this as a refused login.
    """
    _read(path)

    def token(_: str) -> tuple[str, float]:
        found = _read(path)
        return found, _end_of(found)

    return token


def _read(path: str) -> str:
    try:
        found = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"token_file={path!r} cannot be used: {reason}", key="token_file") from None
    if not found or not found.isprintable() or " " in found:
        raise ConfigError(f"token_file={path!r} cannot be used: it holds no token", key="token_file")
    return found


def _end_of(token: str) -> float:
    """Return the end of a token, in seconds since the epoch."""
    claims = token.split(".")[1:2]
    try:
        padded = base64.urlsafe_b64decode(claims[0] + "==")
        end = msgspec.json.decode(padded, type=_Claims).exp
    except (IndexError, ValueError, msgspec.DecodeError):
        end = None
    return SystemClock().wall_ms() / 1000 + OPAQUE_S if end is None else end
