"""Words that plain English avoids, counted by folder: `python tests/words/word_budget.py` lowers the budgets."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGETS = Path(__file__).with_name("budgets.json")
WORDS = re.compile(
    r"\b(behind|whoever|whomever|whom|who|nobody|somebody|anybody|halfs|tells?|told|telling|stands?|stood|standing"
    r"|go(?:es)? on|went on|take[sn]? in|took in|comes? to rest|put aside)\b",
    re.IGNORECASE,
)
ENDINGS = (".py", ".md", ".html", ".js", ".mjs", ".toml", ".yaml", "Makefile", "run")
PACKAGES = ("txcore", "plugins", "conformance", "spark", "tests")


def folder_of(name: str) -> str:
    """Return the folder whose budget a file counts against: a subfolder of a package, else the top folder."""
    parts = name.split("/")
    if len(parts) == 1:
        return "."
    deep = parts[0] in PACKAGES and len(parts) > 2
    if parts[0] in {"plugins", "conformance", "spark"} and len(parts) > 3:
        return "/".join(parts[:3])
    return "/".join(parts[:2]) if deep else parts[0]


def counts() -> dict[str, int]:
    """Return how many of the words each folder holds; folders without any are left out."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: Counter[str] = Counter()
    for name in listed.splitlines():
        path = ROOT / name
        if name.endswith(ENDINGS) and path.is_file() and "tests/words/" not in name:
            found[folder_of(name)] += len(WORDS.findall(path.read_text(encoding="utf-8")))
    return {folder: count for folder, count in sorted(found.items()) if count}


def budgets() -> dict[str, int]:
    """Return the most words that each folder may hold."""
    kept: dict[str, int] = json.loads(BUDGETS.read_text(encoding="utf-8"))
    return kept


if __name__ == "__main__":
    now, before = counts(), budgets() if BUDGETS.exists() else {}
    lower = {folder: min(count, before.get(folder, count)) for folder, count in now.items()}
    BUDGETS.write_text(json.dumps(lower, indent=1) + "\n", encoding="utf-8")
