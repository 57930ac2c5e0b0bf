"""`docs/checker.md` and the OpenAPI file agree with the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from txcore import HalfView, LocalTransactionState, Message
from txcore.config import load
from txcore.config.reference import markdown
from txcore.sidecar import callback, life
from txcore.sidecar.metrics import METRICS
from txcore.sidecar.process import Sidecar
from txcore.sidecar.web.changes import change_routes
from txcore.sidecar.web.desk import Desk
from txcore.sidecar.web.guard import Guard
from txcore.sidecar.web.lists import Lists
from txcore.sidecar.web.routes import api_routes, health_routes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "checker.md"
HALF = HalfView(bytes(16), "orders", (Message("t", b"x", b"k", {"a": "b", "c": b"d"}),), 1, 2)


def block(name):
    """Return the text between a marker and its end."""
    match = re.search(rf"<!-- {name}[^\n]*-->\n(.*?)<!-- end -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return match[1].strip()


def metrics_table():
    """Return the table of metrics."""
    rows = [f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |" for each in METRICS]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])


def test_the_reference_is_made_of_the_structs():
    """The page has the reference that `txcore config reference` prints."""
    assert markdown().strip() == block("reference")


def test_every_metric_is_listed():
    """The page has the table of metrics that the module of metrics describes."""
    assert metrics_table() == block("metrics")


def test_every_exit_code_and_signal_is_documented():
    """The page has each exit code; the page and the command's help have each signal."""
    text = PAGE.read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "txcore.cli", "checker", "--help"], capture_output=True, text=True, check=True
    )
    codes = (0, 1, 2, 3, life.NOT_DRAINED)
    assert [] == [code for code in codes if f"| {code} |" not in text]
    for word in ("SIGTERM", "SIGHUP", "--check-config", "128 + n"):
        assert word in text
        assert word in done.stdout.replace("\n", " ")


def test_every_event_of_the_sidecar_is_documented():
    """The page or the list of the checker's events has each name in the logs."""
    text = PAGE.read_text(encoding="utf-8") + (ROOT / "docs" / "writing-a-backend.md").read_text(encoding="utf-8")
    logged = set()
    for path in (ROOT / "txcore" / "sidecar").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        logged |= set(re.findall(r'(?:LOG\.\w+\((?:level, |logging\.\w+, )?|_report\()"([a-z_]+\.[a-z_]+)"', source))
    assert len(logged) > 10
    rare = {
        "backend.close_failed",
        "group.failed",
        "history.failed",
        "http.failed",
        "systemd.not_notified",
    }
    assert set() == {name for name in logged - rare if f"`{name}`" not in text}


def schema(name):
    return json.loads((ROOT / "docs" / "callback-openapi.json").read_text())["components"]["schemas"][name]


@pytest.mark.parametrize("bodies", [True, False])
def test_the_request_is_as_the_openapi_file_says(bodies):
    """The request has exactly the keys of the OpenAPI file."""
    sent = msgspec.json.decode(callback.encode_half(HALF, bodies=bodies))
    half, message = schema("Half"), schema("Message")
    assert set(half["properties"]) == set(half["required"]) == set(sent)
    assert set(message["required"]) <= set(sent["messages"][0]) <= set(message["properties"])
    assert bodies == ("body_base64" in sent["messages"][0])
    assert callback.VERSION == half["properties"]["version"]["const"]


def test_the_answer_is_as_the_openapi_file_says():
    """The OpenAPI file has the three states and the number of bytes that the checker reads."""
    answer = schema("Answer")
    assert [state.value for state in LocalTransactionState] == answer["properties"]["state"]["enum"]
    assert str(callback.ANSWER_BYTES_MAX) in answer["description"]


def test_the_signature_is_as_the_openapi_file_says():
    """The OpenAPI file has the signature's header and its pattern."""
    text = json.loads((ROOT / "docs" / "callback-openapi.json").read_text())
    (header,) = text["paths"]["/check"]["post"]["parameters"]
    assert callback.SIGNATURE_HEADER == header["name"]
    assert re.fullmatch(header["schema"]["pattern"], callback.signature("s", 1_700_000_000, b"{}"))


def test_every_route_of_the_api_is_described_with_its_method(tmp_path):
    """`docs/api-openapi.json` has exactly the API's routes, and each reference in it points to a schema."""
    text = (ROOT / "docs" / "api-openapi.json").read_text(encoding="utf-8")
    described = {(method.upper(), path) for path, each in json.loads(text)["paths"].items() for method in each}
    (tmp_path / "txcore.toml").write_text('[backends.b]\nurl = "sqlite:///b.db"\n[groups.g]\nlistener = "a:b"\n')
    sidecar = Sidecar(load(tmp_path / "txcore.toml", environment={}))
    desk, lists = Desk(sidecar), Lists(sidecar.clock)
    routes = [
        *health_routes(sidecar),
        *api_routes(sidecar, lists),
        *change_routes(desk, Guard(), sidecar.clock),
    ]
    assert described == {(method, route.path) for route in routes for method in route.methods - {"HEAD"}}
    schemas = json.loads(text)["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) == set(schemas)


def test_the_pages_that_the_console_has_are_those_of_its_page():
    """`docs/console.md` names each tab."""
    text = (ROOT / "docs" / "console.md").read_text(encoding="utf-8")
    for name in ("Groups", "Pending", "Parked", "Decisions"):
        assert f"| {name} |" in text
