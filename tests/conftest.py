"""What is too heavy for every run: clusters of three, and versions that must be fetched; `make heavy` runs them.

And how a worker of pytest-xdist died: by which signal, and what its fault handler wrote, stand in the test's report.
And what Hypothesis may not fail for: a machine that is busy.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in whatever a script runs in the background; the processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine makes an example or its drawing slow, which says nothing about the code. The examples stay random, as
# each run then looks at new ones; one that fails is printed with what repeats it, and kept in .hypothesis.
settings.register_profile("txcore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("txcore")

HEAVY_FIXTURES = {"trio", "clustered"}
"""Fixtures that start three nodes of one broker."""
TRACES = pytest.StashKey()
"""A folder with a file for each worker's fault handler."""
DIES_WITHIN_S = 10


def pytest_collection_modifyitems(items):
    """Mark what needs such a fixture; tests that fetch another version are marked where they stand."""
    for item in items:
        if HEAVY_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.heavy)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    """In a worker: have the fault handler, which pytest pointed at standard error, write to a file that outlives it."""
    traces = getattr(config, "workerinput", {}).get("traces")
    if traces:
        path = Path(traces) / config.workerinput["workerid"]
        faulthandler.enable(os.open(path, os.O_WRONLY | os.O_CREAT))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a worker where."""
    if TRACES not in node.config.stash:
        folder = tempfile.TemporaryDirectory(prefix="txcore-traces-")
        node.config.stash[TRACES] = Path(folder.name)
        node.config.add_cleanup(folder.cleanup)
    node.workerinput["traces"] = str(node.config.stash[TRACES])


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report):
    """Say how the worker died."""
    worker = report.node
    try:
        status = worker.gateway._io.popen.wait(DIES_WITHIN_S)
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    except subprocess.TimeoutExpired:
        how = "its process is still there"
    trace = worker.config.stash[TRACES] / worker.gateway.id
    report.longrepr += f"\n{how}\n{trace.read_text(encoding='utf-8') if trace.exists() else ''}"
