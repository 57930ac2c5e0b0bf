"""A process that ends normally has sent all accepted messages: no half waits for a checker, no message comes twice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from txcore_conformance import exit_child
from txcore_conformance.harness import Harness
from txcore_conformance.kit import COMMIT, Answers, Kit

EXIT_TIME_MAX_S = 120.0
CASES = [
    *((style, "return") for style in exit_child.STYLES),
    *(("primitive", ending) for ending in [*exit_child.ENDINGS, exit_child.FORKED] if ending != "return"),
]


@pytest.mark.needs_process
@pytest.mark.parametrize(("style", "ending"), CASES)
def test_a_process_that_ends_normally_leaves_nothing_open(
    kit: Kit, topic: str, harness: Harness, style: str, ending: str
) -> None:
    """A program that ends without waiting has all its accepted messages delivered once and closed in the log."""
    if style == "database":
        pytest.importorskip("sqlalchemy", reason="this style needs a database")
    assert kit.promises is not None  # makes the group
    done = subprocess.run(  # noqa: S603 - txcore's own module
        [sys.executable, "-m", exit_child.__name__, kit.url or harness.url, kit.group, topic, style, ending],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=EXIT_TIME_MAX_S,
        check=False,
    )
    assert done.returncode == exit_child.STATUS.get(ending, 0), done.stderr
    listener = Answers(COMMIT)
    kit.sweep(kit.checker(listener))
    kit.history.at_rest = True
    assert [] == listener.asked
    assert sorted(exit_child.BODIES) == sorted(kit.bodies(topic))
