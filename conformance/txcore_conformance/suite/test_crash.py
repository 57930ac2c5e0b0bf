"""Processes killed at every step of the flow: committed transactions are delivered, others never are."""

from __future__ import annotations

import pytest

from txcore_conformance.harness import Harness
from txcore_conformance.kit import Kit

pytest.importorskip("sqlalchemy", reason="the crash kit's programs use the fence")

from txcore_conformance import crash
from txcore_conformance.crash_child import PROGRAMS


@pytest.mark.needs_process
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_process_killed_at_any_step_breaks_no_invariant(kit: Kit, harness: Harness, program: str) -> None:
    """No invariant breaks when one process dies at each step (`crash --cycles` also kills at a step's second time)."""
    assert kit.harness is harness
    tallies = crash.kill_everywhere(harness, [program], first_only=True)
    print("\n".join(f"{step} kills={tally.kills}" for step, tally in tallies.items()))
    broken = [f"{step}: {violation}" for step, tally in tallies.items() for violation in tally.violations]
    assert [] == broken
    assert [] == [str(step) for step, tally in tallies.items() if not tally.kills]
