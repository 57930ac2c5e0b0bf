"""The documentation builds as a static site, without a warning and without anything from another host."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import txcore
from txcore.cli.examples import EXAMPLES

pytest.importorskip("furo", reason="the site needs txcore[docs]")

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docs" / "site" / "build.py"


def test_every_page_is_built_and_in_the_navigation(site):
    """The home page has a link to each document."""
    home = (site / "index.html").read_text(encoding="utf-8")
    documents = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/frameworks/*.md"),
        *ROOT.glob("[pe]*/*/README.md"),
    ]
    for document in documents:
        page = document.relative_to(ROOT).with_suffix(".html")
        assert (site / page).is_file()
        assert f'href="{page}"' in home
    assert len(documents) > 20


def test_every_public_name_is_in_the_reference(site):
    """The reference has each name of `txcore.__all__`."""
    page = (site / "docs" / "site" / "reference.html").read_text(encoding="utf-8")
    assert [] == [name for name in txcore.__all__ if name != "__version__" and f'id="txcore.{name}"' not in page]


def test_programs_are_led_to_the_markdown_of_each_page(site):
    """`llms.txt` is at the top of the site, and its links lead to the pages' Markdown there."""
    named = re.findall(r"\]\((.+?\.md)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert [] == [name for name in named if name != "docs/site/index.md" and not (site / name).is_file()]
    assert len(named) > 40


def test_every_link_leads_to_a_page_and_a_place_on_it(site):
    """Each link of the finished pages inside the site has its file, and its anchor is there."""
    pages = {path.resolve(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    broken, seen = [], 0
    for path, text in pages.items():
        for link in re.findall(r'<a\b[^>]*\bhref="([^"]*)"', text):
            parts = urlsplit(unescape(link))
            if parts.scheme or parts.netloc:
                continue
            seen += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in anchors and anchor not in anchors[target]):
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    assert [] == broken
    assert seen > 10_000


def test_every_command_is_in_the_reference_of_the_commands(site):
    """The page of the commands has the help of each, under a heading to link to."""
    page = (site / "docs" / "site" / "commands.html").read_text(encoding="utf-8")
    assert [] == [path for path in EXAMPLES if f'id="{"-".join(["txcore", *path.split()])}"' not in page]
    assert "--older-than" in page


def test_nothing_is_fetched_from_another_host(site):
    """The site loads no script, style sheet, font or picture from another host."""
    fetched = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//"""
        r"""|<link\b[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon)[^>]*\bhref=["'](?:https?:)?//"""
        r"""|@import|url\(["']?(?:https?:)?//"""
    )
    found = {
        path.relative_to(site).as_posix(): match[0]
        for path in site.rglob("*")
        if path.suffix in {".html", ".css"}
        for match in [fetched.search(path.read_text(encoding="utf-8"))]
        if match
    }
    assert {} == found


@pytest.mark.parametrize(
    ("link", "trouble"),
    [("[there](other.md#a-heading)", ""), ("[gone](gone.md)", "gone.md"), ("[no](other.md#no-such)", "no-such")],
    ids=["sound", "page", "heading"],
)
def test_a_broken_link_fails_the_build(tmp_path, link, trouble):
    """A site of two pages is built; with a link to a missing page or to a missing heading the build fails."""
    program = f"""
import sys
sys.path.insert(0, {str(BUILD.parent)!r})
import build
from pathlib import Path
def gather(folder):
    (folder / "index.md").write_text("# Home\\n\\n```{{toctree}}\\nother\\n```\\n\\n" + {link!r} + "\\n")
    (folder / "other.md").write_text("# Other\\n\\n## A heading\\n")
build.gather = gather
sys.exit(build.build(Path({str(tmp_path / "html")!r})))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert (bool(trouble), bool(trouble)) == (done.returncode != 0, bool(done.stderr)), done.stderr
    assert trouble in done.stderr
