"""A plugin of pytest, `-p mutating`: the run has one rule switched off, the one that TXCORE_MUTANT names."""

from __future__ import annotations

import os

import pytest
from mutant import all_mutants

VARIABLE = "TXCORE_MUTANT"


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    """Switch the rule off until the run ends; a name that no mutant has is an error."""
    name = os.environ.get(VARIABLE)
    if name is not None:
        (mutant,) = [each for each in all_mutants() if each.name == name]
        off = mutant.patch()
        off.__enter__()
        config.add_cleanup(lambda: off.__exit__(None, None, None))
