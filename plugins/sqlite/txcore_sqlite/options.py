"""The options of a `sqlite:///` URL: their names, units, ranges and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from txcore import ranges
from txcore.errors import ConfigError

SCHEME: Final = "sqlite"
PARTITION_COUNT_MAX: Final = 256
_PREFIX: Final = "sqlite:///"
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Options:
    """How one backend uses its file.

    Attributes:
        auto_create: Unknown target topics are created; else halves that name one are refused.
        synchronous: "FULL" waits for the disk in every transaction; "NORMAL" survives a killed process but may lose
            the last transactions when the machine loses power.
        partitions: Partitions of a group that is created without a number; 1 to 256.
        busy_timeout_s: How long a transaction waits for other processes' write lock before it is refused; 0.05 to 60.
        body_size_max: Largest encoded half, in bytes; 1 KiB to 512 MiB.
        queue_max: Most items that wait in this process; above that, new ones are refused.
        lease_s: A member of a group that is silent for so long loses its partitions; 0.2 to 600.
        page_count_max: Most pages (of 4 KiB) the file may have; 0 for no bound but the disk.
    """

    auto_create: bool = True
    synchronous: str = "FULL"
    partitions: int = 4
    busy_timeout_s: float = 1.5
    body_size_max: int = 1_000_000
    queue_max: int = 10_000
    lease_s: float = 5.0
    page_count_max: int = 0


def parse_options(options: Mapping[str, str]) -> Options:
    """Return the options of a URL's query.

    Raises:
        ConfigError: an option is unknown, of the wrong type or out of range; `key` names it.
    """
    known: dict[str, bool | str | int | float] = {}
    for key, text in options.items():
        if key == "auto_create":
            known[key] = _boolean(key, text)
        elif key == "synchronous":
            known[key] = _choice(key, text.upper(), ("FULL", "NORMAL"))
        elif key in _RANGES:
            known[key] = ranges.parse(key, text, *_RANGES[key])
        else:
            names = ", ".join(Options.__dataclass_fields__)
            raise ConfigError(f"the sqlite backend has no option {key!r}; it has {names}", key=key)
    return Options(**known)  # type: ignore[arg-type] # each value was parsed by its own key


def parse_path(url: str) -> Path | None:
    """Return the absolute path of the file that *url* names, or None if it has another scheme.

    `sqlite:///broker.db` is relative to the working directory, `sqlite:////var/broker.db` is absolute; a `?` or `#`
    in the name is written percent-encoded.

    Raises:
        ConfigError: *url* names no file.
    """
    if not url.startswith(f"{SCHEME}:"):
        return None
    name = unquote(url.removeprefix(_PREFIX).partition("?")[0])
    if not url.startswith(_PREFIX) or not name or name == ":memory:" or name.endswith("/"):
        raise ConfigError(
            f"{url!r} names no file: write sqlite:///relative.db or sqlite:////absolute.db; "
            "for a broker in memory use memory://name",
            key="url",
        )
    return Path(name).absolute()


_RANGES: Final[Mapping[str, tuple[ranges.Kind, float, float]]] = {
    "partitions": (int, 1, PARTITION_COUNT_MAX),
    "busy_timeout_s": (float, 0.05, 60),
    "body_size_max": (int, 1_024, 512 * 1_048_576),
    "queue_max": (int, 1, 1_000_000),
    "lease_s": (float, 0.2, 600),
    "page_count_max": (int, 0, 1 << 31),
}


def _boolean(key: str, text: str) -> bool:
    lowered = text.lower()
    if lowered not in _TRUE | _FALSE:
        raise ConfigError(f"{key} is true or false, not {text!r}", key=key)
    return lowered in _TRUE


def _choice(key: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise ConfigError(f"{key} is {' or '.join(choices)}, not {text!r}", key=key)
    return text
