"""Every mutant dies: the test that guards its rule fails while the rule is off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutant import all_mutants
from mutant_table import PAGE, page
from mutating import VARIABLE
from txcore_conformance import brokers
from txcore_conformance.required import obtained

ROOT = Path(__file__).parents[2]
MUTANTS = all_mutants()
RUN_TIME_MAX_S = 300
FAILED = 1
"""pytest's exit status when a test failed; a run that could not begin has another one."""


@pytest.fixture(scope="session")
def broker_environment():
    """Return a function that starts a broker once, and returns the variables with which other processes use it."""
    started = {}

    def environment(name):
        if name and name not in started:
            started[name] = obtained(name, lambda: brokers.start(name))
        return brokers.environment({name: started[name]}) if name else {}

    yield environment
    for broker in started.values():
        broker.stop()


def run(nodes, extra):
    """Run tests in a process of their own, and return the exit status and the output."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", VARIABLE))}
    paths = os.pathsep.join(str(path) for path in (Path(__file__).parent, ROOT, *ROOT.glob("plugins/*")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "mutating", *nodes],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": paths, **extra},
        capture_output=True,
        text=True,
        timeout=RUN_TIME_MAX_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_mutant_has_a_name_of_its_own():
    """Each mutant has its own name, which the environment variable contains."""
    names = [mutant.name for mutant in MUTANTS]
    assert sorted(set(names)) == sorted(names)


def test_the_table_of_the_page_is_the_lists():
    """The page's table agrees with the lists; `python tests/mutants/mutant_table.py` updates it."""
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_what_a_mutant_names_is_there(mutant):
    """Each mutant's patch can be applied and undone, and the file of its test has a test of that name."""
    with mutant.patch():
        pass
    path, _, name = mutant.killed_by.partition("::")
    function = name.partition("[")[0].rpartition("::")[2]
    assert re.search(rf"^ *(async )?def {function}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.heavy
@pytest.mark.parametrize("broker", sorted({mutant.broker for mutant in MUTANTS}), ids=lambda name: name or "no broker")
def test_tests_that_guard_the_rules_pass_without_a_mutant(broker, broker_environment):
    """The tests that guard the rules pass without a mutant; otherwise their failure would prove nothing."""
    nodes = sorted({mutant.killed_by for mutant in MUTANTS if mutant.broker == broker})
    status, output = run(nodes, broker_environment(broker))
    passed = re.search(r"^(\d+) passed in", output, re.MULTILINE)  # a node may have several parameters
    assert status == 0, output
    assert passed is not None, output
    assert int(passed[1]) >= len(nodes), output


@pytest.mark.heavy
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_mutant_dies(mutant, broker_environment):
    """The test that guards the rule fails while the rule is off."""
    status, output = run([mutant.killed_by], {**broker_environment(mutant.broker), VARIABLE: mutant.name})
    assert (status, "FAILED " in output) == (FAILED, True), f"{mutant.rule} is off, and no test failed:\n{output}"
