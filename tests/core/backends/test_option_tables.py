"""The READMEs of the plugins have the tables that the declarations of their options make."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

MADE = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "site" / "options.py"))


@pytest.mark.parametrize("scheme", MADE["SCHEMES"])
def test_the_table_of_options_is_that_of_the_declarations(scheme):
    """A README has its marked table, as `make options` writes it."""
    text = MADE["page_of"](scheme).read_text(encoding="utf-8")
    assert MADE["MARKED"].search(text)
    assert text == MADE["text_of"](scheme)
