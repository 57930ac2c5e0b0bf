"""Require that a tag, the package's version and the newest section of CHANGELOG.md agree: `version.py v0.1.0`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str) -> list[str]:
    """Return what must be corrected before *tag* is released."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    section = re.search(r"^## \[(.+?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, pyproject.toml says {version}")
    if section is None or section[1] != version or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", section[2]):
        found.append(f"CHANGELOG.md does not begin with `## [{version}] - YYYY-MM-DD`")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(problems(*sys.argv[1:])) or 0)
