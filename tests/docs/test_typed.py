"""mypy strict takes the documents' programs as a user would write them, and the Django example.

The other examples are among mypy's files in pyproject.toml. This one has a package `shop`, as another example has.
"""

from __future__ import annotations

import os
import subprocess
import sys

from blocks import ROOT, blocks_of, documents

#: Modules with the names that pages use without making them, and with a reader's own code.
GIVEN = {
    "scene.pyi": """
from typing import Any
import sqlalchemy as sqlalchemy
import txcore as txcore
from txcore.port import Backend
from txcore_sqlite.consumer import Received

backend: Backend
engine: sqlalchemy.Engine
fence: txcore.SqlFence
insert_order: sqlalchemy.TextClause
schema: str

def connect_to(options: Any) -> Any: ...
def handle(message: Received) -> None: ...
""",
}
SETTINGS = """
[mypy]
strict = true
python_version = 3.11
[mypy-django.*,orjson]
ignore_missing_imports = true
[mypy-shop.*]
disallow_subclassing_any = false
disallow_untyped_decorators = false
"""


def test_mypy_strict_takes_the_programs_of_the_documents(tmp_path):
    """A page holds nothing that mypy strict reports; its programs are read in their order, as one module."""
    for name, text in {**GIVEN, "mypy.ini": SETTINGS}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    pages = []
    for document in documents():
        name = document.removesuffix(".md").replace("/", "_").replace("-", "_")
        for ending, lines in (("", program_of(document)), ("_service", program_of(document, of_service=True))):
            if lines:
                pages.append(tmp_path / f"{name}{ending}.py")
                pages[-1].write_text("\n".join([*lines, ""]), encoding="utf-8")
    sources = [tmp_path, ROOT, *(ROOT / "plugins").iterdir(), ROOT / "conformance", ROOT / "examples" / "django-shop"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", tmp_path / "mypy.ini", *pages, "examples/django-shop"],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": os.pathsep.join(map(str, sources))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert len(pages) > 10


def program_of(document, *, of_service=False):
    """Return the lines of a document's programs, each at its place, so that an error has the document's number.

    A file of tests is no program, and few users give types to theirs. A part of an example is none either. A service is
    a module of its own.
    """
    lines = []
    for block in blocks_of(document):
        is_service = (block.order, block.detail) == ("run", "service")
        is_other = block.order == "part of" or (block.order, block.detail) == ("run", "pytest")
        if block.language != "python" or is_other or is_service != of_service:
            continue
        lines = lines or ["" if of_service else "from scene import *"]
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return lines
