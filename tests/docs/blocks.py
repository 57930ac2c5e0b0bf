"""Code blocks of the documents, and their comments about running them.

A comment right before a block decides what the tests do with it:

    <!-- run -->            run these shell commands (without it they are only parsed by the programs that they name)
    <!-- run: pytest -->    this Python is a file of tests; `run: conformance`: a harness named MyHarness;
                            `run: service`: a module with an ASGI app that takes orders
    <!-- shown by: FILE --> this is output, which that test produces or compares
    <!-- part of: FILE -->  these lines are in that program, which other tests run
    <!-- not run: WHY -->   nothing is done
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PATTERNS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "plugins/*/README.md",
    "examples/*/README.md",
    "conformance/**/*.md",
    "spark/**/*.md",
)
COMMENT = re.compile(r"<!--\s*(run|not run|shown by|part of)(?::\s*(.+?))?\s*-->\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `order` and `detail` are from its comment."""

    document: str
    line: int
    language: str
    text: str
    order: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def is_part(text: str, program: str) -> bool:
    """Whether the lines of a block follow one another in a program, at any depth."""
    lines, all_lines = ([line.strip() for line in each.strip().splitlines()] for each in (text, program))
    return any(lines == all_lines[start : start + len(lines)] for start in range(len(all_lines)))


def documents() -> list[str]:
    """Return the names of all documents that the tests read."""
    found = {path.relative_to(ROOT).as_posix() for pattern in PATTERNS for path in ROOT.glob(pattern)}
    return sorted(name for name in found if "node_modules" not in name)


def blocks_of(document: str) -> list[Block]:
    """Return a document's blocks in their order."""
    found, comment = [], None
    for token in MarkdownIt().parse((ROOT / document).read_text(encoding="utf-8")):
        if token.type in {"fence", "code_block"}:
            language, line = token.info.partition(" ")[0], token.map[0] + 2
            found.append(Block(document, line, language, token.content, *(comment.groups("") if comment else ())))
        comment = COMMENT.search(token.content) if token.type == "html_block" else None
    return found


def spans_of(document: str) -> list[str]:
    """Return the texts in backticks inside sentences and tables."""
    tokens = MarkdownIt().enable("table").parse((ROOT / document).read_text(encoding="utf-8"))
    return [child.content for token in tokens for child in token.children or () if child.type == "code_inline"]
