"""Plain English: each folder keeps within its budget of words that the house rules avoid, and budgets only fall."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from word_budget import budgets, counts


def test_no_folder_exceeds_its_budget_of_words():
    """A new folder has a budget of none; CONTRIBUTING names the words to use instead."""
    allowed = budgets()
    assert {} == {folder: count for folder, count in counts().items() if count > allowed.get(folder, 0)}


def test_budgets_are_lowered_with_the_words():
    """`python tests/words/word_budget.py` lowers them; a budget that is too high would let words come back."""
    found = counts()
    assert {} == {folder: allowed for folder, allowed in budgets().items() if found.get(folder, 0) < allowed}
