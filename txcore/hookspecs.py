"""The pluggy hooks, which several plugins may implement: a backend the first two, observers the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pluggy

from txcore.findings import Examination, Request
from txcore.ids import TransactionId
from txcore.port import Backend
from txcore.records import Half

PROJECT: Final = "txcore"
hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class Event:
    """A single event; `name` is a constant of `txcore.runtime.instrumentation`, `fields` its facts."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@hookspec(firstresult=True)
def txcore_open_backend(url: str, options: Mapping[str, str]) -> Backend | None:
    """Open a backend for *url*, or return None when its scheme is another's.

    *options* are the URL's query parameters. An option it does not know is a ConfigError that names it; a missing
    driver is a BackendNotInstalledError that names the extra.
    """


@hookspec(firstresult=True)
def txcore_doctor(url: str, options: Mapping[str, str], request: Request) -> Examination[Any] | None:
    """Connect to the live broker and return the checks of its settings, or None when the scheme is another's.

    Optional. The checks change nothing on the broker and create nothing, not even the file or the group that the URL
    and *request* name. Raises what opening a backend raises, and BackendUnavailableError, in one clear sentence, when
    the broker cannot be reached or refuses the credentials.
    """


@hookspec
def txcore_on_event(event: Event) -> None:
    """Record *event* in metrics, traces or alerts. Called on txcore's own threads; must return at once."""


@hookspec
def txcore_trace_headers(transaction_id: TransactionId) -> Mapping[str, str]:  # type: ignore[empty-body]
    """Return headers for every message of a new transaction, such as W3C trace context.

    Called when a message is published, in the caller's thread and context; a header that the user set stays unchanged.
    """


@hookspec
def txcore_on_discard(half: Half | None, reason: str) -> None:
    """Record that a half was parked. *half* is None for a poison record."""
