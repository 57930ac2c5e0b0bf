"""Writes `llms.txt`, a list of the pages for language models: `python docs/site/llms.py`, or `make pictures`.

The form is that of llmstxt.org. Sections and order are those of the site's navigation, sentences the pages' own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
HOME: Final = ROOT / "docs" / "site" / "index.md"
FILE: Final = ROOT / "llms.txt"
HEAD: Final = """# txcore

> txcore sends a message if, and only if, a database transaction commits. It is a Python library (3.11 and later, sync
> and asyncio) for Kafka, RabbitMQ, NATS and SQLite, with PostgreSQL, MariaDB or SQLite as the database.

Facts that programs get wrong: publish inside the block of `producer.transaction(engine)`, and use `tx.connection`
there; bodies and keys are bytes (`Message.json` encodes); a checker must run for each group; delivery is at least once,
so a consumer needs `Inbox`; with asyncio use `AsyncTransactionProducer`, `AsyncSqlFence` and an `AsyncEngine` together.
"""
TREE: Final = re.compile(r"```{toctree}\n(?::hidden:\n)?:caption: (.+)\n\n((?:.+\n)+?)```")


def text() -> str:
    """Return the file."""
    return "\n".join([HEAD, *_lines()]) + "\n"


def _lines() -> Iterator[str]:
    for caption, entries in TREE.findall(HOME.read_text(encoding="utf-8")):
        yield f"## {caption}\n"
        for entry in entries.splitlines():
            page = ROOT / f"{entry.partition('<')[2].rstrip('>') or entry}.md".lstrip("/")
            title, sentence = _described(page)
            yield f"- [{title}]({page.relative_to(ROOT)}): {sentence}"
        yield ""


def _described(page: Path) -> tuple[str, str]:
    """Return a page's title, and the first sentence of its first paragraph."""
    content = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    title = re.search(r"^# (.+)$", content, re.MULTILINE)
    paragraphs = [each for each in content.split("\n\n")[1:] if re.match(r"[A-Z*`\[]", each)]
    assert title, page
    plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", " ".join(paragraphs[0].split())).replace("**", "").replace("*", "")
    return title[1].replace("`", ""), re.split(r"(?<=[.:]) (?=[A-Z`])", plain)[0].rstrip(":")


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
