"""Adds Python for browsers to a built site: `python docs/site/playground.py FOLDER`, or `make playground`.

The playground's page runs the simulator, so the site needs Pyodide (by npm), two packages built for it (by pip), and
the sources of txcore. All are pinned with their hashes in `docs/site/pyodide`, and nothing of them is committed. A
browser then fetches nothing from elsewhere.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SITE: Final = Path(__file__).parent
ROOT: Final = SITE.parents[1]
PINS: Final = SITE / "pyodide"
RUNTIME: Final = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PLATFORM: Final = ("--platform", "pyemscripten_2026_0_wasm32", "--python-version", "3.14", "--abi", "cp314")
"""The kind of Python in the pinned Pyodide."""
SOURCES: Final = (ROOT / "txcore", ROOT / "conformance" / "txcore_conformance")
ARCHIVE: Final = "txcore.zip"


def add(site: Path) -> Path:
    """Add the files to a built site; returns their folder, whose `manifest.json` lists the archives to unpack.

    Raises:
        CalledProcessError: npm or pip failed.
    """
    folder = site / "_static" / "playground"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _add_runtime(folder)
    wheels = _add_wheels(folder)
    with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, name in _modules():
            archive.write(path, name)
    (folder / "manifest.json").write_text(json.dumps({"archives": [*wheels, ARCHIVE]}) + "\n", encoding="utf-8")
    return folder


def _add_runtime(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as given:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(PINS / name, given)
        subprocess.run(["npm", "ci", "--silent", "--ignore-scripts"], cwd=given, check=True)  # noqa: S607
        for name in RUNTIME:
            shutil.copy(Path(given) / "node_modules" / "pyodide" / name, folder)


def _add_wheels(folder: Path) -> list[str]:
    """Download the packages; return their files' names."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", *PLATFORM, "--dest", str(folder)]
    subprocess.run([*pip, *options, "-r", str(PINS / "requirements.txt")], check=True)  # noqa: S603
    return sorted(path.name for path in folder.glob("*.whl"))


def _modules() -> Iterator[tuple[Path, Path]]:
    """Yield every module of txcore and of its simulator, with its place in the archive."""
    for package in SOURCES:
        for path in sorted(package.rglob("*.py")):
            yield path, path.relative_to(package.parent)


if __name__ == "__main__":
    made = add(Path(sys.argv[1]))
    size = sum(path.stat().st_size for path in made.iterdir())
    sys.stdout.write(f"{made}: {size / 1e6:.1f} MB. Serve the site: python -m http.server -d {sys.argv[1]}\n")
