"""The documents' links lead somewhere, and the README leads to every document; tests/docs runs what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{p.name}" for p in DOCS)]
)
def test_the_links_lead_to_files(document):
    """Every relative link of a document names a file of the tree."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / document).read_text(encoding="utf-8"))
    assert [] == [link for link in links if not (ROOT / document).parent.joinpath(link).exists()]


def test_every_document_is_reachable():
    """The README links to each document."""
    assert [] == [page.name for page in DOCS if f"(docs/{page.name})" not in README]
