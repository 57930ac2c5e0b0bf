"""Every event's name in one place, and the reporter that logs it and hands it to plugins."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import pluggy

from txcore import hookspecs
from txcore.records import Half

CHECKER_ASSIGNED: Final = "checker.assigned"
CHECKER_CLAIMED: Final = "checker.claimed"
CHECKER_STOOD_DOWN: Final = "checker.stood_down"
CHECKER_ERROR: Final = "checker.error"
CHECK_ANSWERED: Final = "check.answered"
CHECK_NO_ANSWER: Final = "check.no_answer"  #: an alert: nothing was counted, it is asked again
CHECK_WRONG_LISTENER: Final = "check.wrong_listener"  #: an alert: group and topic without a listener here
HALF_FINISHED: Final = "half.finished"
HALF_CARRIED: Final = "half.carried"
HALF_PARKED: Final = "half.parked"
RELEASE_REFUSED: Final = "release.refused"
RELEASE_UNKNOWN: Final = "release.unknown"
OP_CONFLICT: Final = "op.conflict"  #: an alert: a final op contradicts the first one
OP_STALE: Final = "op.stale"
OP_WITHOUT_HALF: Final = "op.without_half"
LOG_TRUNCATED: Final = "log.truncated"
LOG_POISON: Final = "log.poison"

ALERTS: Final = frozenset(
    {
        CHECKER_ERROR,
        CHECK_NO_ANSWER,
        CHECK_WRONG_LISTENER,
        HALF_PARKED,
        OP_CONFLICT,
        OP_WITHOUT_HALF,
        LOG_TRUNCATED,
        LOG_POISON,
    }
)


class Reporter:
    """Logs events and passes them to registered plugins. A failing plugin is logged and never disturbs the caller.

    Args:
        always: Facts that are logged with every event.
    """

    def __init__(self, logger: str, plugins: Sequence[object] = (), **always: Any) -> None:
        self._always = always
        self._log = logging.getLogger(logger)
        self._manager: pluggy.PluginManager | None = None
        if plugins:
            self._manager = pluggy.PluginManager(hookspecs.PROJECT)
            self._manager.add_hookspecs(hookspecs)
            for plugin in plugins:
                self._manager.register(plugin)

    def event(self, name: str, **fields: Any) -> None:
        """Report that *name* happened."""
        level = logging.WARNING if name in ALERTS else logging.DEBUG
        if self._log.isEnabledFor(level):
            self._log.log(level, name, extra={"txcore": self._always | fields})
        if self._manager is not None:
            self._call("txcore_on_event", event=hookspecs.Event(name, fields))

    def discard(self, half: Half | None, reason: str) -> None:
        """Report that a half was parked."""
        if self._manager is not None:
            self._call("txcore_on_discard", half=half, reason=reason)

    def _call(self, hook: str, **arguments: Any) -> None:
        try:
            getattr(self._manager.hook, hook)(**arguments)  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001 - an observer must not stop the protocol
            self._log.warning("plugin.failed", exc_info=True, extra={"txcore": self._always | {"hook": hook}})
