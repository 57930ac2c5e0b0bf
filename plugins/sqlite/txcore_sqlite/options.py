"""The options of a `sqlite:///` URL: their names, units, ranges and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from txcore.backends.options import choice, parse_options, seconds, switch, whole
from txcore.errors import ConfigError

SCHEME: Final = "sqlite"
PARTITION_COUNT_MAX: Final = 256
_PREFIX: Final = "sqlite:///"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one backend uses its file."""

    auto_create: bool = switch(
        True, "unknown target topics are created; `false`: a half that names one is refused before it is stored"
    )
    synchronous: str = choice(
        "FULL",
        ("FULL", "NORMAL"),
        "`FULL` waits for the disk in each transaction; `NORMAL` survives killed processes, but a power failure may "
        "lose the last transactions",
    )
    partitions: int = whole(4, 1, PARTITION_COUNT_MAX, "of a group that is made without a number; they never change")
    busy_timeout_s: float = seconds(
        1.5, 0.05, 60, "how long work may wait for other processes' write lock; then it is refused"
    )
    body_size_max: int = whole(1_000_000, 1_024, 512 << 20, "bytes of one encoded half")
    queue_max: int = whole(
        10_000, 1, 1_000_000, "items that wait in one process; beyond, new ones are refused (`BusyError`)"
    )
    lease_s: float = seconds(
        5.0, 0.2, 600, "time of silence after which a member (checker or consumer) has lost its place"
    )
    page_count_max: int = whole(0, 0, 1 << 31, "bound on the file, in pages of 4 KiB; 0 for none but the disk")


class Address(NamedTuple):
    """The parts of a `sqlite:///` URL."""

    path: Path
    options: Options


def parse_url(url: str) -> Address:
    """Return the absolute path of the file that *url* names, and the options of its query.

    Raises:
        ConfigError: as `parse_path`, or an option is unknown, of the wrong type or out of range; `key` names it.
    """
    return Address(parse_path(url), parse_options(Options, url))


def parse_path(url: str) -> Path:
    """Return the absolute path of the file that *url* names.

    `sqlite:///broker.db` is relative to the working directory, `sqlite:////var/broker.db` is absolute; a `?` or `#`
    in the name is written percent-encoded.

    Raises:
        ConfigError: *url* names no file.
    """
    name = unquote(url.removeprefix(_PREFIX).partition("?")[0])
    if not url.startswith(_PREFIX) or not name or name == ":memory:" or name.endswith("/"):
        raise ConfigError(
            "the URL names no file: write sqlite:///relative.db or sqlite:////absolute.db; "
            "for a broker in memory use memory://name",
            key="url",
        )
    return Path(name).absolute()
