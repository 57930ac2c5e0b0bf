"""The HTTP endpoint under arbitrary requests: no internal error, answers as described, bounded memory.

`TXCORE_FUZZ_EXAMPLES` sets how many requests each operation gets, and each test prints how many it made.
"""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txcore.sidecar.web.sessions import COOKIE

EXAMPLES = int(os.environ.get("TXCORE_FUZZ_EXAMPLES", "40"))
API = json.loads((Path(__file__).parents[2] / "docs" / "api-openapi.json").read_text(encoding="utf-8"))
SCHEMA = schemathesis.openapi.from_dict(API)
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
MEMORY_MB_MAX = 60
HEADER_TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60)
FIELD_NAMES = st.sampled_from(["form_token", "reason", "confirmation", "mark", "override", "name", "token", "to"])
PATHS = st.sampled_from(
    [
        "/console",
        "/console/sign-in",
        "/console/sign-out",
        "/console/groups/orders",
        "/console/groups/orders/find",
        "/console/groups/orders/parked/resume",
    ]
) | st.builds(
    lambda group, verb: f"/console/groups/{group}/transactions/{'0' * 32}/{verb}",
    st.sampled_from(["orders", "unused", "%2e%2e"]),
    st.sampled_from(["commit", "rollback", "resume", "drop", ""]),
)
ALL = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method.upper()} {each.path}")
def test_every_operation_answers_as_it_is_described(served, shop, operation):
    """The endpoint answers any request with a described status and body, never with an internal error."""
    client, statuses = served.client("t"), {}
    identity = next(iter(shop.orphans(1, fenced=False)[True]))

    @ALL
    @given(case=operation.as_strategy(), is_known=st.booleans())
    def ask(case, is_known):
        known = {"group": "orders", "id": identity}
        if is_known:
            case.path_parameters = {name: known[name] for name in case.path_parameters or {}}
        kwargs = case.as_transport_kwargs(base_url="http://127.0.0.1")
        path = kwargs["url"].removeprefix("http://127.0.0.1")
        query = urlencode(kwargs.get("params") or {}, doseq=True)
        headers = {"authorization": "Bearer t", "content-type": "application/json"}
        body = None if kwargs.get("json") is None else json.dumps(kwargs["json"]).encode()
        answer = client.request(case.method, f"{path}?{query}" if query else path, headers, body)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        described = operation.definition.raw["responses"]
        assert str(answer.status_code) in described or answer.status_code == 404
        assert answer.headers["x-content-type-options"] == "nosniff"
        if "application/json" in answer.headers["content-type"]:
            shown = json.loads(answer.text)
            wanted = ["error"] if answer.status_code >= 400 and "status" not in shown else []
            assert set(wanted) <= set(shown)

    before_mb = peak_mb()
    ask()
    print(f"{sum(statuses.values())} requests, answered {statuses}, {peak_mb() - before_mb:.0f} MB more")  # noqa: T201 - the counts, with -s
    assert peak_mb() - before_mb < MEMORY_MB_MAX


@pytest.mark.parametrize("verb", ["resume", "commit", "rollback"])
def test_no_body_makes_a_change_fail(served, shop, verb):
    """The endpoint refuses any bytes or JSON of any size with a reason, or accepts the request."""
    identity = next(iter(shop.orphans(1, fenced=False)[True]))
    client, statuses = served.client("t"), {}
    path = f"/api/v1/groups/orders/transactions/{identity}/{verb}"
    headers = {"authorization": "Bearer t", "content-type": "application/json"}
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    fields = st.sampled_from(["by", "reason", "confirm", "override_fence", "mark", "x"])
    values = st.recursive(leaf, lambda each: st.lists(each) | st.dictionaries(fields, each), max_leaves=8)
    said = st.binary(max_size=200) | values.map(lambda each: json.dumps(each).encode()) | st.just(b"[" * 60_000)

    @ALL
    @given(body=said | st.integers(65_000, 70_000).map(lambda size: b'"' + b"x" * size + b'"'))
    def change(body):
        answer = client.post(path, body, headers)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert answer.status_code in {202, 400, 409, 413}

    change()
    print(f"{sum(statuses.values())} bodies, answered {statuses}")  # noqa: T201 - the counts, with -s


def test_no_form_or_cookie_makes_the_console_fail(served):
    """The console answers any path, fields, cookie and headers without an internal error, and begins no session."""
    client, statuses = served.client("t"), {}

    @ALL
    @given(
        path=PATHS | st.text(max_size=30).map(lambda text: f"/console/{quote(text, safe='/')}"),
        method=st.sampled_from(["GET", "POST", "PUT", "HEAD"]),
        fields=st.dictionaries(FIELD_NAMES, st.text(max_size=80), max_size=8),
        cookie=HEADER_TEXT,
        site=st.sampled_from(["same-origin", "cross-site", "none", ""]),
    )
    def ask(path, method, fields, cookie, site):
        headers = {
            "cookie": f"{COOKIE}={cookie}",
            "sec-fetch-site": site,
            "content-type": "application/x-www-form-urlencoded",
        }
        body = urlencode(fields).encode() if method == "POST" else None
        answer = client.request(method, path, headers, body)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert answer.status_code < 500
        assert COOKIE not in answer.headers.get("set-cookie", "")

    ask()
    print(f"{sum(statuses.values())} requests, answered {statuses}")  # noqa: T201 - the counts, with -s
