"""Runs a page's service as its reader does: in a file of its own, with uvicorn, and one order by HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from txcore_conformance.kit import wait_until
from txcore_sqlite.consumer import read_topic

LOG = Path("service.log")


def order_from(block):
    """Start the service of a block and order a cake: the answer comes once row and message are there."""
    Path("service.py").write_text(block.text, encoding="utf-8")
    with LOG.open("wb") as log:
        command = [sys.executable, "-m", "uvicorn", "service:app", "--port", "0"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:

        def address():
            text = LOG.read_text(encoding="utf-8")
            assert process.poll() is None, f"{block}: {text}"
            return re.search(r"running on (http://[\d.:]+)", text)

        url = f"{wait_until(address, 'the address of the service')[1]}/orders?item=cake"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as response:
            assert {"ordered": "cake"} == json.load(response)
        assert [b'{"item":"cake"}'] == [message.body for message in read_topic("broker.db", "orders.created")]
    finally:
        process.terminate()
        process.wait(60)
    assert "Traceback" not in LOG.read_text(encoding="utf-8")
