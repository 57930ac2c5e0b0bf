"""Transaction ids: UUID version 7, 16 bytes, ordered by creation time (RFC 9562)."""

from __future__ import annotations

import struct
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Final, Self
from zlib import crc32

from txcore.clock import Clock, Randomness
from txcore.errors import UsageError

ID_BYTES: Final = 16
TIME_BYTES: Final = 6
"""Number of bytes at the beginning of an id that hold the time of its birth."""
SHARE: Final = 4
"""Number of parts that the partitions are divided into; ids of one moment fall into one part."""
STAY_MS: Final = 16
"""Time, in milliseconds, for which ids fall into the same part."""
_COUNTER_BITS: Final = 62
_COUNTER_BYTES: Final = 8
_RANDOM_BITS: Final = 12 + _COUNTER_BITS - 1
UUID_VERSION: Final = 7
_VERSION: Final = UUID_VERSION << 12
_VARIANT: Final = 0b10 << 62
_COUNTER_END: Final = _VARIANT + (1 << _COUNTER_BITS) - (1 << 32)
"""Limit of the counter, after which the next millisecond begins; it leaves room below the variant's bits."""
_UUID_PARTS: Final = struct.Struct("8s4s4s4s12s")


class _PydanticSerializer:
    """The attribute by which pydantic writes an object of undeclared type, made when pydantic asks for it first."""

    @cached_property
    def _made(self) -> Any:
        from pydantic_core import SchemaSerializer, core_schema  # noqa: PLC0415 - optional

        as_text = core_schema.plain_serializer_function_ser_schema(str, when_used="json")
        return SchemaSerializer(core_schema.any_schema(serialization=as_text))

    def __get__(self, instance: Any, owner: Any) -> Any:
        try:
            return self._made
        except ImportError:
            raise AttributeError("there is no pydantic_core") from None


class TransactionId(bytes):
    """The id of one transaction: 16 bytes that print, parse and serialise as the text of the `txcore-id` header.

    `str()`, f-strings, `%s` and `json.dumps(…, default=str)` give the text, as the command line and the console show
    it; pydantic reads and writes it, so FastAPI does. Equality, hash and order are those of the bytes; the order is
    that of creation, within one producer strictly. `bytes(id)` gives plain bytes, for a binary column or a driver.

    Raises:
        UsageError: *raw* is not 16 bytes.
    """

    __slots__ = ()
    __pydantic_serializer__ = _PydanticSerializer()

    def __new__(cls, raw: bytes) -> Self:
        """Return the id of these 16 bytes; `parse` takes the text."""
        if not isinstance(raw, bytes) or len(raw) != ID_BYTES:
            raise UsageError(f"a transaction id has {ID_BYTES} bytes, not {raw!r}; TransactionId.parse reads its text")
        return super().__new__(cls, raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the id that *text* shows; hyphens and upper case do not matter.

        Raises:
            UsageError: *text* is not a transaction id.
        """
        return bytes.__new__(cls, parse_id(text))

    @property
    def born_ms(self) -> int:
        """The wall clock time of the producer, in milliseconds since 1970, at which the transaction began."""
        return born_ms(self)

    def __str__(self) -> str:
        """Return the text."""
        return id_text(self)

    def __format__(self, spec: str) -> str:
        """Return the text, formatted as a text."""
        return format(id_text(self), spec)

    def __repr__(self) -> str:
        """Return the class with the text."""
        return f"TransactionId({id_text(self)!r})"

    def decode(self, encoding: str = "", errors: str = "") -> str:  # noqa: ARG002 - the signature of bytes
        """Return the text, whatever the encoding; FastAPI calls this for an endpoint without a return type."""
        return id_text(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let pydantic accept an id or its text; it writes an id by `__pydantic_serializer__`."""
        from pydantic_core import core_schema  # noqa: PLC0415 - optional

        def valid(value: Any) -> TransactionId:
            try:
                return cls(value) if isinstance(value, bytes) else cls.parse(value)
            except UsageError as error:
                raise ValueError(str(error)) from error

        return core_schema.no_info_plain_validator_function(valid)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, str]:
        """Return the JSON schema of the text."""
        return {"type": "string", "format": "uuid"}


known_id: Final[Callable[[bytes], TransactionId]] = partial(bytes.__new__, TransactionId)
"""Makes a TransactionId of the 16 bytes of an id, unchecked: bytes of a record, or of an IdFactory."""


class IdFactory:
    """Makes transaction ids that ascend within one factory, even when the wall clock stops or goes back.

    Thread safe. Each new millisecond starts from fresh randomness; within one millisecond the random part
    counts up (RFC 9562, section 6.2, method 2), so ids of one factory never repeat. A forked child must make
    its own factory.
    """

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness
        self._lock = threading.Lock()
        self._last_ms = -1
        self._prefix = b""
        self._prefix_crc = 0
        self._counter = 0
        self._offset = randomness.getrandbits(16)

    def new(self, partition_count: int = 1) -> bytes:
        """Return a fresh id of 16 bytes.

        The id falls into a quarter of the *partition_count* partitions, which is the same for some milliseconds and
        then changes: messages that one process sends together share requests to the broker, and in the long run all
        partitions get the same share (Kafka's producers do so with records that have no key).
        """
        with self._lock:
            now_ms = self._clock.wall_ms()
            if now_ms > self._last_ms:
                self._begin(now_ms)
            elif self._counter >= _COUNTER_END:
                self._begin(self._last_ms + 1)
            counter = self._counter
            tail = counter.to_bytes(_COUNTER_BYTES, "big")
            if partition_count > 1:
                wanted, prefix_crc = self._last_ms // STAY_MS + self._offset, self._prefix_crc
                span = -(-partition_count // SHARE)
                while (crc32(tail, prefix_crc) - wanted) % partition_count >= span:  # as `partition_of`
                    counter += 1
                    tail = counter.to_bytes(_COUNTER_BYTES, "big")
            self._counter = counter + 1
            return self._prefix + tail

    def many(self, count: int) -> list[bytes]:
        """Return *count* fresh ids that fall into all partitions, made with one reading of the clock."""
        with self._lock:
            now_ms = self._clock.wall_ms()
            if now_ms > self._last_ms:
                self._begin(now_ms)
            elif self._counter + count > _COUNTER_END:
                self._begin(self._last_ms + 1)
            first, prefix = self._counter, self._prefix
            self._counter = first + count
        return [prefix + counter.to_bytes(_COUNTER_BYTES, "big") for counter in range(first, first + count)]

    def _begin(self, now_ms: int) -> None:
        """Start a millisecond: 12 fixed random bits, and a counter that begins at 61 random bits.

        The counter's top bit stays free, so that counting up does not overflow within the millisecond.
        """
        bits = self._randomness.getrandbits(_RANDOM_BITS)
        self._last_ms = now_ms
        self._prefix = (now_ms << 16 | _VERSION | bits >> _COUNTER_BITS - 1).to_bytes(ID_BYTES - _COUNTER_BYTES, "big")
        self._prefix_crc = crc32(self._prefix)
        self._counter = _VARIANT | bits & (1 << _COUNTER_BITS - 1) - 1


def id_text(transaction_id: bytes) -> str:
    """Return the canonical text form, as in `txcore-id` headers and on the command line."""
    text = transaction_id.hex("-", 2)  # five times as fast as uuid.UUID, and made for every target
    return f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:]}"


def id_texts(transaction_ids: Sequence[bytes]) -> Iterator[bytes]:
    """Return the text form of each id, as ASCII bytes; see `id_text`."""
    return map(b"-".join, _UUID_PARTS.iter_unpack(b"".join(transaction_ids).hex().encode()))


def parse_id(text: str) -> bytes:
    """Return the 16 bytes of an id in text form.

    Raises:
        UsageError: *text* is not a UUID.
    """
    try:
        return uuid.UUID(text).bytes
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{text!r} is not a transaction id (a UUID such as {id_text(bytes(16))})") from error


def born_ms(transaction_id: bytes) -> int:
    """Return the wall clock time, in milliseconds, at which the id was made."""
    return int.from_bytes(transaction_id[:TIME_BYTES], "big")


def first_id_at(wall_ms: int) -> TransactionId:
    """Return the smallest id that a factory could make at *wall_ms*; ids born earlier sort below it."""
    return known_id(wall_ms.to_bytes(6, "big") + b"\x70\x00\x80" + bytes(7))


def partition_of(transaction_id: bytes, partition_count: int) -> int:
    """Return the partition of an id: the same for every process, version and broker.

    CRC-32, as zlib and Kafka's C clients compute it: every language has it, and it takes a tenth of a hash's time.
    """
    return crc32(transaction_id) % partition_count


def partitions_of(transaction_ids: Sequence[bytes], partition_count: int) -> list[int]:
    """Return the partition of each id, as `partition_of` does."""
    return [crc32(transaction_id) % partition_count for transaction_id in transaction_ids]
