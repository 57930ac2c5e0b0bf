"""Each mended hole, opened again, is found by a machine that does not know it."""

from __future__ import annotations

import pytest
from txcore_conformance.refine.__main__ import hunt
from txcore_conformance.refine.mutants import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_an_open_hole_is_found(name):
    """Within two minutes of CPU time some history of one of the layers shows it."""
    assert hunt(name) is not None, MUTANTS[name].rule
