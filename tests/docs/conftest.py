"""Makes the modules beside the tests importable, and builds the site once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "docs" / "site" / "build.py"

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site that `make docs` builds; TXCORE_SITE names one that is built already."""
    if given := os.environ.get("TXCORE_SITE"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("site") / "html"
    done = subprocess.run([sys.executable, BUILD, folder], capture_output=True, text=True, check=False, timeout=300)
    assert (0, "") == (done.returncode, done.stderr)
    return folder
