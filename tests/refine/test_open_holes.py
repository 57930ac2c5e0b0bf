"""Each defect that was repaired is found again when its rule is switched off."""

from __future__ import annotations

import pytest
from txcore_conformance.refine.__main__ import hunt
from txcore_conformance.refine.mutants import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_an_open_hole_is_found(name):
    """Within two minutes of CPU time, a history of one of the layers shows the defect."""
    assert hunt(name) is not None, MUTANTS[name].rule
