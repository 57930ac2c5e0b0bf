"""The pluggy hooks, which several plugins may implement: a backend the first one, observers the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pluggy

from txcore.ids import TransactionId
from txcore.plugin import BackendPlugin
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
def txcore_backend() -> BackendPlugin:  # type: ignore[empty-body]
    """Return the descriptor of the backend whose URL scheme is the name of the module's entry point."""


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
