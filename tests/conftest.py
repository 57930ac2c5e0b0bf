"""Settings of all tests: marks of the heavy ones, reports of dead workers, a profile of Hypothesis, and a browser.

Tests with clusters of three and with versions that must be fetched are too heavy for every run; `make heavy` runs them.
If a worker of pytest-xdist dies, the test's report contains the signal and the output of its fault handler. Hypothesis
does not fail because the machine is busy.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from txcore_conformance import servers

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script's background process ignores SIGINT, and the processes that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine makes an example or its drawing slow, which is no fault of the code. The examples stay random, so
# that each run tries new ones. A failing one is printed with the decorator that repeats it, and kept in .hypothesis.
settings.register_profile("txcore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("txcore")

HEAVY_FIXTURES = {"trio", "clustered"}
"""Fixtures that start three nodes of one broker."""
TRACES = pytest.StashKey()
"""A folder with a file for each worker's fault handler."""
DIES_WITHIN_S = 10
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
CHANGING = re.compile(r"\b[0-9a-f]{8}[0-9a-f-]*|\b[pc]:\S+|\d[\d.,:-]*( ?(ms|s|min|h)\b)?")
"""What differs from run to run in the words of a page: ids, names of processes, figures and times."""
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM_ARGUMENTS = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
CHROMIUM_MORE = ("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage")


def pytest_collection_modifyitems(items):
    """Mark tests with such a fixture as heavy; tests that fetch another version are marked in their own file."""
    for item in items:
        if HEAVY_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.heavy)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    """Let a worker's fault handler write to a file that outlives it, instead of to standard error."""
    traces = getattr(config, "workerinput", {}).get("traces")
    if traces:
        path = Path(traces) / config.workerinput["workerid"]
        faulthandler.enable(os.open(path, os.O_WRONLY | os.O_CREAT))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Pass the folder of the fault handlers' files to a worker."""
    if TRACES not in node.config.stash:
        folder = tempfile.TemporaryDirectory(prefix="txcore-traces-")
        node.config.stash[TRACES] = Path(folder.name)
        node.config.add_cleanup(folder.cleanup)
    node.workerinput["traces"] = str(node.config.stash[TRACES])


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report):
    """Add to the report how the worker died."""
    worker = report.node
    try:
        status = worker.gateway._io.popen.wait(DIES_WITHIN_S)
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    except subprocess.TimeoutExpired:
        how = "its process is still there"
    trace = worker.config.stash[TRACES] / worker.gateway.id
    report.longrepr += f"\n{how}\n{trace.read_text(encoding='utf-8') if trace.exists() else ''}"


def require(what, reason):
    """Skip with the reason, or fail if the environment requires *what*."""
    if servers.is_required(what):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def outside():
    """The environment of a pytest that a test starts: without this run's settings, and with the plugins it names only.

    The import of all those that are installed for these tests takes three seconds of the processor.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return variables | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture(scope="module")
def chromium():
    """Debian's Chromium, driven by Playwright; TXCORE_CHROMIUM names another executable.

    The scope is not the whole session: while the browser exists, this thread counts as one with a running event loop,
    and no other test could call `asyncio.run`.
    """
    path = os.environ.get("TXCORE_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if path is None:
        require("chromium", "no Chromium: apt-get install chromium, or name one in TXCORE_CHROMIUM")
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - it may not be there
    except ImportError:
        require("chromium", "no Playwright: pip install playwright")
    driver = sync_playwright().start()
    arguments = [*CHROMIUM_ARGUMENTS, *CHROMIUM_MORE, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    browser = driver.chromium.launch(executable_path=path, args=arguments)
    yield browser
    browser.close()
    driver.stop()


@pytest.fixture
def screen():
    """Compare a page with its picture in the documents: the picture's words are kept, and must be those of today.

    With TXCORE_SCREENS the picture is taken anew (`make screens`).
    """
    kept = PICTURES / "screens.json"

    def compare(name, html):
        words = " ".join(CHANGING.sub(" ", re.sub(r"<style.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)).split())
        known = json.loads(kept.read_text(encoding="utf-8"))
        if os.environ.get("TXCORE_SCREENS"):
            kept.write_text(json.dumps(known | {name: words}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            return PICTURES / f"{name}.png"
        assert known[name] == words, "the page is another one now: make screens"
        assert (PICTURES / f"{name}.png").is_file()
        return None

    return compare
