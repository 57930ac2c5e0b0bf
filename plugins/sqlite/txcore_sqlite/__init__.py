"""`sqlite:///file`: a broker in one file, for trying txcore, for tests and for small deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txcore.findings import Examination, Request
from txcore.guarantees import BrokerObject
from txcore.hookspecs import hookimpl
from txcore.port import Backend
from txcore_sqlite.backend import SqliteBackend
from txcore_sqlite.consumer import open_consumer
from txcore_sqlite.guarantees import GUARANTEES
from txcore_sqlite.options import Options, parse_options, parse_path

__all__ = ["GUARANTEES", "Options", "SqliteBackend", "describe_group", "open_consumer", "txcore_open_backend"]


@hookimpl
def txcore_open_backend(url: str, options: Mapping[str, str]) -> Backend | None:
    """Open the file that a `sqlite:///` URL names; None for another scheme.

    Raises:
        ConfigError: the URL names no file, an option is unknown or out of range, or the file is another application's.
        BackendUnavailableError: the file cannot be opened.
    """
    path = parse_path(url)
    return None if path is None else SqliteBackend(path, parse_options(options))


@hookimpl
def txcore_doctor(url: str, options: Mapping[str, str], request: Request) -> Examination[Any] | None:
    """Return the checks of the file that a `sqlite:///` URL names, without creating it; None for another scheme."""
    path = parse_path(url)
    if path is None:
        return None
    from txcore_sqlite.doctor import sqlite_examination  # noqa: PLC0415 - only the doctor needs it

    return sqlite_examination(path, options, request)


def describe_group(url: str, group: str, partition_count: int) -> Sequence[BrokerObject]:
    """Return the tables that hold a group in the file; *partition_count* makes no difference."""
    from txcore_sqlite import describing  # noqa: PLC0415 - only `txcore topics` needs it

    return describing.describe_group(url, group, partition_count)
