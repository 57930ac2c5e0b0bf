"""The HTTP endpoint: the answer of each path, its access, and the headers of every answer."""

from __future__ import annotations

import json
import socket
import urllib.request
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import JSONResponse
from starlette.routing import Route

from txcore import ConfigError
from txcore.clock import system_randomness
from txcore.config import load
from txcore.sidecar.metrics import METRICS
from txcore.sidecar.process import Sidecar
from txcore.sidecar.source_circuit import CALLBACK, SourceCircuit
from txcore.sidecar.web.app import make_app
from txcore.sidecar.web.guard import SECURITY_HEADERS, Guard, read_body
from txcore.sidecar.web.server import WebServer
from txcore.sidecar.web.tokens import Token

PATHS = ["/healthz", "/readyz", "/metrics", "/api/v1/groups", "/api/v1/groups/orders", "/api/v1/groups/orders/parked"]


def test_health_and_readiness_say_that_all_is_well(served):
    """Both paths report no problem while the group runs."""
    assert {"status": "ok", "reasons": []} == served.get("/healthz").json()
    components = {"state": "running", "checker": "ok", "broker": "ok", "database shop": "ok", "relay": "ok"}
    assert {"status": "ready", "reasons": [], "groups": {"orders": components}} == served.get("/readyz").json()


def test_readiness_names_the_missing_parts(served, wait_until):
    """A fence that cannot be read makes the process unready although no half waits; draining is a reason of its own."""
    with served.shop.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE txcore_tx")
    wait_until(lambda: served.get("/readyz").status_code == 503, "the table to be missed")
    shown = served.get("/readyz").json()
    (reason,) = shown["reasons"]
    assert "unready" == shown["status"]
    assert reason.startswith("group orders: database shop: the fence table is missing")
    assert reason.endswith(shown["groups"]["orders"]["database shop"])
    served.shop.fence.create()
    wait_until(lambda: served.get("/readyz").status_code == 200, "the table to be found")
    served.sidecar.is_draining = True
    shown = served.get("/readyz").json()
    assert ("unready", ["draining"]) == (shown["status"], shown["reasons"])


def test_a_callback_that_is_down_is_no_lack_of_readiness(served):
    """The group is degraded then, and fails `/readyz` only with `?strict`."""
    circuit = SourceCircuit(CALLBACK, served.sidecar.clock, system_randomness(), failures_max=1)
    served.sidecar.runners["orders"].answers.circuits = (circuit,)
    with circuit.question(0.0) as question:
        question.failure = "the server is gone"
    status, shown = _status_and_json(served.get("/readyz"))
    assert (200, "degraded") == (status, shown["status"])
    assert ["group orders: callback: the server is gone"] == shown["reasons"]
    assert 503 == served.get("/readyz?strict").status_code


def _status_and_json(answer):
    return answer.status_code, answer.json()


def test_a_group_that_cannot_start_is_no_readiness(tmp_path, wait_until, make_client):
    """`/readyz` has the reason; the process continues and tries again."""
    (tmp_path / "txcore.toml").write_text(
        f'[backends.main]\nurl = "sqlite:///{tmp_path}/no/such/folder/b.db"\n[groups.orders]\nlistener = "missing:x"\n'
        "[checker]\nrestart_s = 0.01\nrestart_max_s = 0.02\n"
    )
    sidecar = Sidecar(load(tmp_path / "txcore.toml", environment={}))
    sidecar.start()
    wait_until(lambda: sidecar.runners["orders"].figures.starts_failed > 2, "three tries")
    client = make_client(make_app(sidecar, Guard()))
    status, shown = _status_and_json(client.get("/readyz"))
    assert (503, "unready", 1) == (status, shown["status"], len(shown["reasons"]))
    assert shown["reasons"][0].startswith("group orders: it is ")
    assert 200 == client.get("/healthz").status_code
    assert 503 == client.get("/api/v1/groups/orders/pending").status_code
    assert sidecar.stop()


def test_a_checker_whose_thread_is_dead_is_no_health(served):
    """`/healthz` fails if a checker's thread is dead, because only a new process helps then."""
    checker = served.sidecar.runners["orders"]._checker
    checker._stop.set()
    checker._thread.join(10)
    assert (503, {"status": "stuck", "reasons": ["group orders is stuck"]}) == _status_and_json(served.get("/healthz"))


def test_metrics_show_every_metric_with_its_labels(served, shop, wait_until):
    """The page has exactly the metrics of the table."""
    shop.orphans(3)
    wait_until(lambda: served.sidecar.runners["orders"].halves_read == 3, "the halves")
    families = {family.name: family for family in text_string_to_metric_families(served.get("/metrics").text)}
    promised = {metric.name.removesuffix("_total"): metric for metric in METRICS}
    ours = {name: family for name, family in families.items() if name.startswith("txcore_")}
    assert set(promised) == set(ours)
    for name, family in ours.items():
        metric = promised[name]
        assert (metric.kind, metric.help) == (family.type, family.documentation)
        for sample in family.samples:
            assert set(metric.labels) == set(sample.labels) - {"le"}
    values = {sample.name: sample.value for family in ours.values() for sample in family.samples}
    assert (3, 3, 2) == (values["txcore_pending_halves"], values["txcore_halves_total"], values["txcore_partitions"])
    assert 0 < values["txcore_pending_oldest_age_seconds"] < 60


def test_api_shows_groups_and_partitions(served, shop, wait_until):
    """The API shows groups and partitions by name, without secrets and URLs."""
    shop.orphans(2)
    wait_until(lambda: served.sidecar.runners["orders"].halves_read == 2, "the halves")
    (group,) = served.get("/api/v1/groups").json()["groups"]
    assert ("orders", "running", "main", ["fence"], "shop") == (
        group["group"],
        group["state"],
        group["backend"],
        group["sources"],
        group["database"],
    )
    assert ([0, 1], 2, 600.0) == (group["owned"], group["pending"], group["policy"]["immunity_s"])
    shown = served.get("/api/v1/groups/orders").json()
    assert [0, 1] == [each["partition"] for each in shown["partitions"]]
    assert all(each["is_claimed"] for each in shown["partitions"])
    assert str(shop.folder) not in json.dumps(shown)


def test_the_api_lists_pending_halves(served, shop):
    """The list has the oldest halves first, up to the limit, with canonical ids and without bodies."""
    ids = set().union(*shop.orphans(5).values())
    shown = served.get("/api/v1/groups/orders/pending?limit=3").json()
    assert (5, 3) == (shown["count"], len(shown["pending"]))
    assert {each["transaction_id"] for each in shown["pending"]} < ids
    assert ["orders.created"] == shown["pending"][0]["topics"]
    births = [each["born_ms"] for each in shown["pending"]]
    assert sorted(births) == births


def test_lists_are_kept_for_a_moment(served, shop):
    """The endpoint keeps a list for a moment, so ten open pages cost the broker no more than one."""
    client = served.client()
    assert 0 == client.get("/api/v1/groups/orders/pending").json()["count"]
    shop.orphans(1)
    assert 0 == client.get("/api/v1/groups/orders/pending").json()["count"]
    assert 1 == served.client().get("/api/v1/groups/orders/pending").json()["count"]


def test_the_api_lists_parked_halves(served):
    """The list is empty while no half is parked."""
    assert {"count": 0, "parked": []} == served.get("/api/v1/groups/orders/parked").json()


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "", "1e3", "²", "9" * 5_000])
def test_a_limit_out_of_range_is_refused(served, limit):
    """The answer has the allowed range."""
    answer = served.get(f"/api/v1/groups/orders/pending?{urlencode({'limit': limit})}")
    assert (400, {"error": "limit is a whole number from 1 to 1000"}) == _status_and_json(answer)


def test_the_root_leads_to_the_console(served):
    """A browser with host and port only finds the console, and from there the sign-in; other hosts find nothing."""
    answer = served.client("t").get("/")
    assert (303, "/console") == (answer.status_code, answer.headers["location"])
    answer = served.client().get("/", {"host": "evil.example"})
    assert 403 == answer.status_code


def test_lists_are_filtered(served, shop, wait_until):
    """Topic, key and age choose; a filter that is no filter is refused with the reason."""
    identity = next(iter(shop.orphans(1, immunity_s=600)[True]))
    path = "/api/v1/groups/orders/pending"
    client = served.client()
    wait_until(lambda: client.get(path).json()["count"] == 1, "the half")
    for query, count in (
        ("topic=orders.created&key=k&older_than=0s", 1),
        ("topic=orders", 0),
        ("key=K", 0),
        ("older_than=1h", 0),
        ("code=POISON", 0),
    ):
        answer = client.get(f"{path}?{query}").json()
        assert (count, count) == (answer["count"], len(answer["pending"])), query
    (row,) = client.get(path).json()["pending"]
    assert (identity, "orders") == (row["transaction_id"], row["group"])
    for query, words in (("older_than=soon", "older than takes a duration"), ("code=NONE", "the code is one of")):
        answer = client.get(f"{path}?{query}")
        assert (400, words in answer.json()["error"]) == (answer.status_code, True)


@pytest.mark.parametrize("path", ["/api", "/api/v1/groups/unused", "/api/v1/groups/unused/pending"])
def test_unknown_path_is_not_found(served, path):
    """The answer is JSON with status 404."""
    answer = served.get(path)
    assert 404 == answer.status_code
    assert answer.json()["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_here_changes_state(served, path, method):
    """No path for reading accepts a method that changes state."""
    assert 405 == served.client().request(method, path).status_code


@pytest.mark.parametrize("path", [*PATHS, "/nowhere"])
def test_every_answer_has_the_security_headers(served, path):
    """Errors have the headers too."""
    answer = served.get(path)
    for name, value in SECURITY_HEADERS:
        assert value.decode() == answer.headers[name.decode()]


def test_an_error_inside_is_answered_with_headers_and_without_details(served, caplog):
    """The details are only in the log."""

    def fail(_):
        raise RuntimeError("secret detail")

    answer = served.client(more=[Route("/fail", fail)]).get("/fail")
    assert (500, {"error": "the checker could not answer; its log says why"}) == _status_and_json(answer)
    assert "nosniff" == answer.headers["x-content-type-options"]
    assert "http.failed" in [record.message for record in caplog.records]


def test_with_a_token_the_api_asks_for_it(served):
    """Health and metrics need no token; a wrong token gets no data."""
    client = served.client("t0ken")
    for path in ("/healthz", "/readyz", "/metrics"):
        assert 200 == client.get(path).status_code
    for value in ("", "Bearer", "Bearer t0kem", "Basic t0ken", "t0ken", "Bearer t0ken x", "Bearer \xff"):
        answer = client.get("/api/v1/groups", headers={"authorization": value.encode("latin-1")})
        assert (401, "Bearer") == (answer.status_code, answer.headers["www-authenticate"])
    assert 200 == client.get("/api/v1/groups", headers={"authorization": "Bearer t0ken"}).status_code
    assert 200 == client.get("/api/v1/groups", headers={"authorization": "bearer t0ken"}).status_code


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:8181", 200),
        ("LOCALHOST", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("evil.example:8181", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
        ("", 403),
    ],
)
def test_without_a_token_only_loopback_names_are_answered(served, host, status):
    """A request under a foreign host name gets no data, so a web page cannot read it by DNS rebinding."""
    assert status == served.get("/api/v1/groups", host=host).status_code


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        ("", {"content-type": "application/json"}, 403),
        ("t", {"content-type": "application/json"}, 401),
        ("t", {"content-type": "application/json", "authorization": "Bearer t"}, 200),
        ("t", {"content-type": "application/json; charset=utf-8", "authorization": "Bearer t"}, 200),
        ("t", {"content-type": "application/x-www-form-urlencoded", "authorization": "Bearer t"}, 415),
        ("t", {"content-type": "text/plain", "authorization": "Bearer t"}, 415),
        (
            "t",
            {"content-type": "application/json", "authorization": "Bearer t", "sec-fetch-site": "cross-site"},
            403,
        ),
        (
            "t",
            {"content-type": "application/json", "authorization": "Bearer t", "sec-fetch-site": "same-origin"},
            200,
        ),
    ],
)
def test_a_change_needs_a_token_and_is_no_foreign_form(served, token, headers, status):
    """A route that changes state calls the guard."""
    guard = Guard([Token(token)] if token else [])
    route = Route("/change", lambda r: guard.refusal_to_change(r) or JSONResponse({}), methods=["POST", "GET"])
    client = served.client(token, more=[route])
    assert status == client.post("/change", content=b"{}", headers=headers).status_code
    if status == 200:
        assert 405 == client.get("/change", headers=headers).status_code


def test_a_body_too_large_is_not_read(served):
    """`read_body` returns None for a body above the limit."""

    async def take(request):
        body = await read_body(request)
        return JSONResponse({"size": None if body is None else len(body)})

    client = served.client(more=[Route("/take", take, methods=["POST"])])
    assert [{"size": 65_536}, {"size": None}] == [
        client.post("/take", content=b"x" * size).json() for size in (65_536, 65_537)
    ]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.text(max_size=40),
    query=st.text(max_size=20),
    header=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30),
)
def test_no_request_makes_the_endpoint_fail(served, path, query, header):
    """The endpoint answers any path, query and token without an internal error."""
    path = f"/api/v1/groups/{quote(path, safe='/')}?{urlencode({'limit': query})}"
    answer = served.get(path, authorization=header)
    assert 500 > answer.status_code


def test_a_port_that_is_taken_is_said_so():
    """The error comes before anything is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; http.port=0 takes"
        ):
            WebServer("127.0.0.1", port)


def test_the_server_serves_and_stops(served):
    """The server chooses a free port; after the stop no server listens there."""
    server = WebServer("127.0.0.1", 0)
    server.start(make_app(served.sidecar, Guard()))
    with urllib.request.urlopen(f"{server.url}/healthz", timeout=10) as answer:
        assert (200, None) == (answer.status, answer.headers["server"])
    server.stop()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{server.url}/healthz", timeout=10)
