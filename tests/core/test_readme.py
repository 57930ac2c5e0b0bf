"""The README's programs run as they stand, in order, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="the README uses the database style")

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_programs_run_in_order(tmp_path, monkeypatch, capsys):
    """A reader who pastes one block after the other sees no error and one mail."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "readme"}
    try:
        for number, block in enumerate(blocks("python"), 1):
            exec(compile(block, f"README.md, block {number}", "exec"), namespace)
    finally:
        namespace["backend"].close().result()
        namespace["engine"].dispose()
    assert "mail for b'{\"order\": 1}'" in capsys.readouterr().out
    assert len(blocks("python")) >= 8


def test_the_make_commands_exist():
    """Every `make` command of the README is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = {name for block in blocks("sh") for name in re.findall(r"^make ([a-z]+)", block, re.MULTILINE)}
    assert {"demo", "test", "conform"} <= used
    assert set() == used - targets


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{p.name}" for p in DOCS)]
)
def test_the_links_lead_to_files(document):
    """Every relative link of a document names a file of the tree."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / document).read_text(encoding="utf-8"))
    assert [] == [link for link in links if not (ROOT / document).parent.joinpath(link).exists()]


def test_every_document_is_reachable():
    """From the README, in one step."""
    assert [] == [page.name for page in DOCS if f"(docs/{page.name})" not in README]
