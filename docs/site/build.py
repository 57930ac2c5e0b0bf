"""Builds the documentation as a static site: `python docs/site/build.py FOLDER`, or `make docs`.

The sources stay in their places in the tree. This script copies them into one folder, points their links at one
another, makes a page of every other file that they link to, and runs Sphinx with warnings as errors. So a broken link
fails the build.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import command_help
from sphinx.cmd.build import build_main

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
HOME = SITE / "index.md"
PAGES = ("*.md", "docs/*.md", "docs/frameworks/*.md", "docs/site/*.md", "plugins/*/README.md", "examples/*/README.md")
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=(?:#[^)]*)?\))")
KEPT = {".md", ".svg", ".png"}
"""Files that are pages or pictures as they are; every other file gets a page that shows it."""
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".json": "json",
    ".yaml": "yaml",
    ".service": "ini",
    ".mjs": "javascript",
}


def pages() -> list[Path]:
    """Every document, in a fixed order."""
    return sorted(path for pattern in PAGES for path in ROOT.glob(pattern))


def place(path: Path) -> Path:
    """Where *path* is in the site, whose home page is at the top."""
    if path == HOME:
        return Path("index.md")
    relative = path.relative_to(ROOT)
    return relative if path.suffix in KEPT else relative.with_name(relative.name + ".md")


def listing(path: Path) -> str:
    """Return the page that shows a file as it is."""
    language = LANGUAGES.get(path.suffix, "docker" if path.name == "Dockerfile" else "text")
    text = path.read_text(encoding="utf-8")
    fence = "`" * max([3, *(1 + len(run) for run in re.findall("`+", text))])
    return f"---\norphan: true\n---\n# `{path.relative_to(ROOT)}`\n\n{fence}{language}\n{text}\n{fence}\n"


def gather(folder: Path) -> None:
    """Write every page, and those that show the files they link to, under *folder*."""
    documents, shown, reference = pages(), set[Path](), command_help.text()
    for document in documents:

        def pointed(match: re.Match[str], document: Path = document) -> str:
            target = document.parent.joinpath(match[0]).resolve()
            if target.is_dir() and (target / "README.md").is_file():
                target /= "README.md"
            if not target.is_file():
                return match[0]  # Sphinx says where
            if target not in documents:
                shown.add(target)
            return os.path.relpath(place(target), place(document).parent)

        made = folder / place(document)
        made.parent.mkdir(parents=True, exist_ok=True)
        text = LINK.sub(pointed, document.read_text(encoding="utf-8"))
        made.write_text(text.replace(command_help.MARK, reference), encoding="utf-8")
    for file in sorted(shown):
        made = folder / place(file)
        made.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in KEPT:
            shutil.copy(file, made)
        else:
            made.write_text(listing(file), encoding="utf-8")


def build(output: Path) -> int:
    """Build the site in *output* from nothing; returns 0, or the exit status of Sphinx."""
    shutil.rmtree(output, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        source, trees = Path(folder) / "source", Path(folder) / "trees"
        source.mkdir()
        gather(source)
        status = _built(source, trees, output)
        for page in source.rglob("*.md"):  # for programs, which `llms.txt` leads to them
            shutil.copy(page, output / page.relative_to(source))
        shutil.copy(ROOT / "llms.txt", output)
        return status


def _built(source: Path, trees: Path, output: Path) -> int:
    options = ["-b", "html", "-q", "-W", "--keep-going", "-E", "-c", str(SITE), "-d", str(trees)]
    return build_main([*options, str(source), str(output)])


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
