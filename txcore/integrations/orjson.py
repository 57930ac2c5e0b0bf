"""JSON by orjson, for objects that it knows and msgspec does not, such as numpy's; needs `txcore[orjson]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txcore.serializers import CONTENT_TYPE, Serializer


def orjson_serializer(*, default: Callable[[Any], Any] | None = None, option: int | None = None) -> Serializer:
    """Return a serializer; *default* and *option* are those of `orjson.dumps`. Thread safe if *default* is.

    Raises:
        ImportError: orjson is not installed.
    """
    import orjson  # noqa: PLC0415 - optional

    def serialize(_topic: str, obj: Any) -> tuple[bytes, dict[str, str | bytes]]:
        return orjson.dumps(obj, default, option), {CONTENT_TYPE: "application/json"}

    return serialize
