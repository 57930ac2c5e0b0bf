"""A checker's bounds, drawn small, so that short histories reach every one of them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any
from unittest import mock

from txcore.checker import checker, due_halves, log_reader, read_halves
from txcore.checker.limits import Limits
from txcore.checker.partition_state import PartitionState

MEMBERSHIP_PAUSE_S = 0.8


def _limits(**drawn: Any) -> Limits:
    known = {each.name for each in fields(Limits)}
    wanted = {
        "replay_max": 12,
        "poll_s": 0.1,
        "idle_poll_s": 1.6,
        "mark_timeout_s": 3.0,
        "read_back_s": 3.0,
        "retry_max_s": 4.0,
        "check_deadline_s": 5.0,
        "refusals_max": 4,
        "checkpoint_interval_s": 0.7,
        "body_bytes_max": 1500,
        **drawn,
    }
    return Limits(**{name: value for name, value in wanted.items() if name in known})


@dataclass(slots=True)
class Bounds:
    """The bounds of the checkers of one seed.

    Attributes:
        constants: Bounds that are constants and not settings, by module and name.
    """

    limits: Limits = field(default_factory=_limits)
    constants: dict[tuple[Any, str], int] = field(default_factory=dict)

    @classmethod
    def draw(cls, rng: random.Random) -> Bounds:
        """Return small bounds in a third of the seeds, each one in about half of those."""
        if rng.random() < 0.65:
            return cls()

        def maybe(usual: int, *small: int) -> int:
            return rng.choice(small) if rng.random() < 0.5 else usual

        limits = _limits(
            replay_max=maybe(12, 1, 3),
            read_count_max=maybe(1_000, 1, 2, 3),
            batch_count_max=maybe(500, 1, 2),
            fence_batch_count_max=maybe(200, 1, 2),
            refusals_max=maybe(4, 1),
            body_bytes_max=maybe(1500, 1, 300),
        )
        constants = {
            (log_reader, "ORPHANS_MAX"): maybe(20_000, 1, 3),
            (log_reader, "MERGED_COUNT"): maybe(50, 1),
            (read_halves, "RECENT_MAX"): maybe(10_000, 1, 3),
            (read_halves, "LEFT_IN_MAX"): maybe(20_000, 1, 3),
            (due_halves, "STALE_MAX"): maybe(10_000, 1),
        }
        return cls(limits, constants)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Let the code under test use the constants; members always poll their claims rarely, which saves time."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(checker, "MEMBERSHIP_PAUSE_MAX_S", MEMBERSHIP_PAUSE_S))
            for (module, name), value in self.constants.items():
                stack.enter_context(mock.patch.object(module, name, value))
            yield

    def passed(self, state: PartitionState) -> Iterator[str]:
        """Yield the bounds that an owner has reached."""
        if len(state.early_ops) >= self.constants.get((log_reader, "ORPHANS_MAX"), 20_000):
            yield "bound ORPHANS_MAX"
        if len(state._recent) >= self.constants.get((read_halves, "RECENT_MAX"), 10_000):  # noqa: SLF001
            yield "bound RECENT_MAX"
        if state._left_out:  # noqa: SLF001
            yield "bound LEFT_IN_MAX"
