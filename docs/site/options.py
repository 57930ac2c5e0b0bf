"""Writes the table of each backend's URL options into its README: `python docs/site/options.py`, or `make options`.

The tables are made of the declarations in the plugins; a test compares them, so that no option stays undocumented.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from txcore.backends.options import option_table
from txcore.registry import plugin_for

ROOT: Final = Path(__file__).parents[2]
SCHEMES: Final = ("kafka", "nats", "rabbitmq", "sqlite")
MARKED: Final = re.compile(r"(?<=<!-- options: make options -->\n).*?(?=<!-- end -->\n)", re.DOTALL)


def page_of(scheme: str) -> Path:
    """Return the README of a plugin."""
    return ROOT / "plugins" / scheme / "README.md"


def text_of(scheme: str) -> str:
    """Return a plugin's README with the table that its declarations make."""
    options = plugin_for(f"{scheme}://").options
    assert options is not None
    return MARKED.sub(lambda _: f"{option_table(options)}\n", page_of(scheme).read_text(encoding="utf-8"), count=1)


if __name__ == "__main__":
    for each in SCHEMES:
        page_of(each).write_text(text_of(each), encoding="utf-8")
