"""Serializers: an object becomes the body of a message, with the headers that say how to read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from txcore.errors import MessageRejectedError, NotSentError, TxcoreError
from txcore.ids import TransactionId

CONTENT_TYPE: Final = "content-type"
"""The header that names the format of a body."""
_BASES: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: str.__str__,
    bytes: bytes.__bytes__,
    int: int.__index__,
    float: float.__float__,
}
"""Types of which JSON knows the values; of a subclass, the function returns the value in its base type."""


class Serializer(Protocol):
    """A callable that encodes an object for a topic; a plain function will do. See `Message.of`.

    It runs in the call that makes the message, before a half exists, and never again: half, target and each
    repetition by a checker carry the same bytes. It must be thread safe if the application calls it from threads.
    """

    def __call__(self, topic: str, obj: Any, /) -> tuple[bytes, Mapping[str, str | bytes] | None]:
        """Return the body, and headers for it or None.

        Raises: TypeError, ValueError, LookupError or AttributeError for an object that it cannot encode; any other
            exception means that it could not work, as when a schema registry is down.
        """


def serialize(serializer: Serializer, topic: str, obj: Any) -> tuple[bytes, Mapping[str, str | bytes]]:
    """Run *serializer*; nothing was sent if it fails.

    Raises:
        MessageRejectedError: the object cannot be encoded.
        NotSentError: the serializer failed for another reason.
    """
    if not callable(serializer):
        text = f"serializer must be a callable (topic, obj) -> (body, headers), not {type(serializer).__name__}"
        raise MessageRejectedError(f"{text}; nothing was sent", topic=topic, reason="serializer")
    try:
        made = serializer(topic, obj)
    except TxcoreError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        text = f"the body of a message for {topic!r} cannot be encoded: {error}; nothing was sent"
        raise MessageRejectedError(text, topic=topic, reason="body") from error
    except Exception as error:
        kind = type(error).__name__
        text = f"the serializer of a message for {topic!r} failed: {kind}: {error}; nothing was sent, try again later"
        raise NotSentError(text, topic=topic) from error
    if not isinstance(made, tuple) or len(made) != len(("body", "headers")):
        text = f"a serializer must return (body, headers or None), not {type(made).__name__}; nothing was sent"
        raise MessageRejectedError(text, topic=topic, reason="body")
    body, headers = made
    return body, headers or {}


def to_json(topic: str, obj: Any) -> tuple[bytes, Mapping[str, str | bytes]]:
    """Encode by msgspec; see `Message.json`.

    Raises:
        MessageRejectedError: a value cannot be encoded; the text names its field and type.
    """
    try:
        return _encode(obj), {CONTENT_TYPE: "application/json"}
    except Exception as error:
        path, culprit = _culprit(obj)
        text = (
            f"body{path} of a message for {topic!r} cannot be JSON: it is of type {type(culprit).__qualname__} "
            f"({error}); nothing was sent. Convert it first"
        )
        raise MessageRejectedError(text, topic=topic, reason=f"body{path}") from error


def _plain(obj: Any) -> Any:
    """Return a form for JSON: a transaction id's text, a subclass's base value, or a pydantic model's own form.

    Pydantic is not imported.
    """
    if isinstance(obj, TransactionId):
        return str(obj)
    for kind, value_of in _BASES.items():
        if isinstance(obj, kind):
            return value_of(obj)
    dump = getattr(obj, "model_dump", None)
    if dump is None or isinstance(obj, type):
        raise TypeError(f"objects of type {type(obj).__qualname__} have no form in JSON")
    return dump(mode="json")


def _encode(obj: Any) -> bytes:
    return msgspec.json.encode(obj, enc_hook=_plain)


def _culprit(obj: Any) -> tuple[str, Any]:
    """Return the path and the value of the innermost part that cannot be encoded by itself."""
    path, seen = "", set[int]()
    while id(obj) not in seen:  # a cycle ends at the part where it closes
        seen.add(id(obj))
        for step, part in _parts(obj):
            try:
                _encode(part)
            except Exception:  # noqa: BLE001 - as for the whole
                path, obj = path + step, part
                break
        else:
            break
    return path, obj


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from ((f"[{index}]", value) for index, value in enumerate(obj))
    elif not isinstance(obj, type) and (isinstance(obj, msgspec.Struct) or dataclasses.is_dataclass(obj)):
        fields = obj.__struct_fields__ if isinstance(obj, msgspec.Struct) else [f.name for f in dataclasses.fields(obj)]
        yield from ((f".{name}", getattr(obj, name)) for name in fields)
