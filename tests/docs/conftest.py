"""Makes the modules beside the tests importable, and builds the site once for all workers."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "docs" / "site" / "build.py"

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site that `make docs` builds; TXCORE_SITE names one that is built already. The workers of a run share it."""
    if given := os.environ.get("TXCORE_SITE"):
        return Path(given).resolve()
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    folder, built = shared / "site" / "html", shared / "site.built"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            command = [sys.executable, BUILD, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            assert (0, "") == (done.returncode, done.stderr)
            built.touch()
    return folder
