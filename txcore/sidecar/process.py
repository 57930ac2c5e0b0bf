"""All groups of one checker process: started, reloaded and drained together."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.config import Loaded
from txcore.config.problems import key_text
from txcore.sidecar.figures import Figures
from txcore.sidecar.group import GroupRunner, GroupStatus
from txcore.sidecar.plan import GroupPlan, plans_of
from txcore.sidecar.resources import Resources

LOG: Final = logging.getLogger("txcore.sidecar")


class Sidecar:
    """The groups of a configuration. `start`, `reload` and `stop` belong to one thread; reading to any.

    Attributes:
        runners: By group; a reload replaces entries.
        is_draining: `stop` has begun.
    """

    def __init__(self, loaded: Loaded, *, clock: Clock | None = None, randomness: Randomness | None = None) -> None:
        self.loaded = loaded
        self.clock = clock or SystemClock()
        self.runners: dict[str, GroupRunner] = {}
        self.is_draining = False
        self._randomness = randomness or system_randomness()
        self._resources = Resources()
        self._figures: dict[str, Figures] = {}

    def start(self) -> None:
        """Start every group; return at once, whether or not brokers and databases can be reached."""
        for name, plan in plans_of(self.loaded).items():
            self._start(name, plan)

    def reload(self, loaded: Loaded) -> list[str]:
        """Apply *loaded*: stop groups that it no longer has, start new ones, restart changed ones.

        Unchanged groups continue to run. Returns the settings that need a restart of the process.
        """
        plans, config, was = plans_of(loaded), loaded.config, self.loaded.config
        changed = [name for name, runner in self.runners.items() if plans.get(name) != runner.plan]
        self._stop(changed, config.checker.shutdown_s)
        for name in changed:
            del self.runners[name]
        for name, plan in plans.items():
            if name not in self.runners:
                self._start(name, plan)
        needs_restart = [
            f"http.{key}"
            for key in config.http.__struct_fields__
            if getattr(config.http, key) != getattr(was.http, key)
        ]
        needs_restart += [
            key_text(path)
            for path in {*loaded.fetched, *self.loaded.fetched}
            if path[0] == "http" and path[-1] == "token" and loaded.secret(*path) != self.loaded.secret(*path)
        ]
        self.loaded = loaded
        LOG.info("config.reloaded", extra={"txcore": {"restarted": changed, "needs_restart": needs_restart}})
        return needs_restart

    def stop(self) -> bool:
        """Drain and stop every group; return whether all were done within `checker.shutdown_s`."""
        self.is_draining = True
        return self._stop(list(self.runners), self.loaded.config.checker.shutdown_s)

    def status(self) -> Mapping[str, GroupStatus]:
        """Return the state of each group."""
        return {name: runner.status() for name, runner in list(self.runners.items())}

    def unready(self) -> list[str]:
        """Return the reasons why the process is not ready: a group does not run, or one of its components is down."""
        if self.is_draining:
            return ["draining"]
        return [f"group {name}: {each}" for name, status in self.status().items() for each in status.troubles]

    def degraded(self) -> list[str]:
        """Return the callbacks of running groups that are down."""
        return [f"group {name}: {each}" for name, status in self.status().items() for each in status.degraded]

    def components(self) -> dict[str, dict[str, str]]:
        """Return the state of each component of each group: "ok", or why it is down."""
        return {
            name: {"state": status.state.value} | {key: reason or "ok" for key, reason in status.components.items()}
            for name, status in self.status().items()
        }

    def stuck(self) -> list[str]:
        """Return the groups whose checker's loop has stopped turning; only a restart of the process helps."""
        return [f"group {name} is stuck" for name, status in self.status().items() if status.is_stuck]

    def _start(self, name: str, plan: GroupPlan) -> None:
        figures = self._figures.setdefault(name, Figures(self.clock))
        runner = self.runners[name] = GroupRunner(plan, self._resources, figures, self.clock, self._randomness)
        runner.start()

    def _stop(self, names: list[str], timeout_s: float) -> bool:
        deadline_s = self.clock.elapsed_s() + timeout_s
        for name in names:
            self.runners[name].ask_to_stop()
        ended = [self.runners[name].join(deadline_s - self.clock.elapsed_s()) for name in names]
        return all(ended)
