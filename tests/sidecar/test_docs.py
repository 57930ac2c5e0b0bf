"""What `docs/checker.md` and the OpenAPI file say is what the code does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from txcore import HalfView, LocalTransactionState, Message
from txcore.config.reference import markdown
from txcore.sidecar import callback, life
from txcore.sidecar.metrics import METRICS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "checker.md"
HALF = HalfView(bytes(16), "orders", (Message("t", b"x", b"k", {"a": "b", "c": b"d"}),), 1, 2)


def block(name):
    """Return what stands between a marker and its end."""
    match = re.search(rf"<!-- {name}[^\n]*-->\n(.*?)<!-- end -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return match[1].strip()


def metrics_table():
    """Return the table of metrics."""
    rows = [f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |" for each in METRICS]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])


def test_the_reference_is_made_of_the_structs():
    """`txcore config reference` prints it."""
    assert markdown().strip() == block("reference")


def test_every_metric_is_listed():
    """As the module of metrics has it."""
    assert metrics_table() == block("metrics")


def test_every_exit_code_and_signal_is_told():
    """On the page and in the command's help."""
    text = PAGE.read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "txcore.cli", "checker", "--help"], capture_output=True, text=True, check=True
    )
    codes = (0, 1, 2, 3, life.NOT_DRAINED)
    assert [] == [code for code in codes if f"| {code} |" not in text]
    for word in ("SIGTERM", "SIGHUP", "--check-config", "128 + n"):
        assert word in text
        assert word in done.stdout.replace("\n", " ")


def test_every_event_of_the_sidecar_is_told():
    """Whoever reads logs finds each name on the page or in the list of the checker's events."""
    told = PAGE.read_text(encoding="utf-8") + (ROOT / "docs" / "writing-a-backend.md").read_text(encoding="utf-8")
    logged = set()
    for path in (ROOT / "txcore" / "sidecar").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        logged |= set(re.findall(r'(?:LOG\.\w+\((?:level, |logging\.\w+, )?|_report\()"([a-z_]+\.[a-z_]+)"', source))
    assert len(logged) > 10
    rare = {
        "backend.close_failed",
        "group.failed",
        "group.leave_failed",
        "history.failed",
        "http.failed",
        "systemd.not_notified",
    }
    assert set() == {name for name in logged - rare if f"`{name}`" not in told}


def schema(name):
    return json.loads((ROOT / "docs" / "callback-openapi.json").read_text())["components"]["schemas"][name]


@pytest.mark.parametrize("bodies", [True, False])
def test_the_request_is_as_the_openapi_file_says(bodies):
    """Every key, none more."""
    sent = msgspec.json.decode(callback.encode_half(HALF, bodies=bodies))
    half, message = schema("Half"), schema("Message")
    assert set(half["properties"]) == set(half["required"]) == set(sent)
    assert set(message["required"]) <= set(sent["messages"][0]) <= set(message["properties"])
    assert bodies == ("body_base64" in sent["messages"][0])
    assert callback.VERSION == half["properties"]["version"]["const"]


def test_the_answer_is_as_the_openapi_file_says():
    """Three states, one key, and the size that is read."""
    answer = schema("Answer")
    assert [state.value for state in LocalTransactionState] == answer["properties"]["state"]["enum"]
    assert str(callback.ANSWER_BYTES_MAX) in answer["description"]


def test_the_signature_is_as_the_openapi_file_says():
    """Its header and its form."""
    text = json.loads((ROOT / "docs" / "callback-openapi.json").read_text())
    (header,) = text["paths"]["/check"]["post"]["parameters"]
    assert callback.SIGNATURE_HEADER == header["name"]
    assert re.fullmatch(header["schema"]["pattern"], callback.signature("s", 1_700_000_000, b"{}"))
