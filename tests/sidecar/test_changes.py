"""Changes over HTTP: permission, refusals, and the record in the log."""

from __future__ import annotations

import json
import re
from urllib.parse import urlencode

import pytest
from txcore_conformance.kit import Recorder

import txcore
from txcore.ids import parse_id
from txcore.operator.operator import Operator
from txcore.records import HalfRecord, OpKind
from txcore.sidecar.logs import facts_of
from txcore.sidecar.web.sessions import COOKIE, LIFETIME_S, Sessions, name_of
from txcore.sidecar.web.tokens import Token

JSON = {"content-type": "application/json", "authorization": "Bearer t"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def one(served, shop):
    """A pending half without a fence, with an immunity that outlasts the test."""
    ((identity,), _) = shop.orphans(1, fenced=False).values()
    return identity


def path_of(identity, verb=""):
    return f"/api/v1/groups/orders/transactions/{identity}{f'/{verb}' if verb else ''}"


def asked(identity, **changes):
    said = {"by": "Ann", "reason": "customer called", "confirm": identity[-8:]} | changes
    return json.dumps({name: value for name, value in said.items() if value is not None}).encode()


def ops_of(shop, identity):
    return [op for _, op in Operator(shop.backend, "orders").show(parse_id(identity)).ops]


def test_request_is_in_the_log_with_name_time_and_reason(served, shop, one):
    """The request only writes to the log: the partition's owner executes it."""
    answer = served.client("t").post(path_of(one, "rollback"), asked(one), JSON)
    assert (202, {"text": "rollback is requested; the checker of its partition executes it"}) == (
        answer.status_code,
        answer.json(),
    )
    (op,) = [op for op in ops_of(shop, one) if op.kind == OpKind.FORCE]
    assert (OpKind.ROLLBACK, "Ann (api)", "customer called", 1) == (op.decision, op.by, op.reason, op.forced)
    assert 0 < op.at_ms
    assert "Ann (api)" == served.client("t").get(path_of(one), JSON).json()["ops"][-1]["by"]


def test_journey_lists_the_possible_actions(served, one):
    """The journey has the mark of the half's state, and no bodies."""
    shown = served.client("t").get(path_of(one), JSON).json()
    assert ("pending", one) == (shown["state"], shown["transaction_id"])
    assert {"resume": "already", "commit": "act", "rollback": "act"} == {
        name: each["step"] for name, each in shown["plans"].items()
    }
    assert "body_base64" not in json.dumps(shown)
    assert "pending.0.-1.-" == shown["mark"]


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"confirm": "rollback"}, 400, "Not confirmed: type "),
        ({"confirm": None}, 400, "missing required field `confirm`"),
        ({"reason": ""}, 400, "`str` of length >= 1"),
        ({"reason": "  "}, 400, "Give a reason"),
        ({"reason": "x" * 501}, 400, "`str` of length <= 500"),
        ({"reason": None}, 400, "missing required field `reason`"),
        ({"by": ""}, 400, "name the operator in `by`"),
        ({"by": "\u202eAnn"}, 400, "name the operator in `by`"),
        ({"override_fence": "yes"}, 400, "Expected `bool`"),
        ({"override_fence": True}, 400, "Not confirmed: type override "),
        ({"more": 1}, 400, "unknown field `more`"),
        ({"mark": "committed.0.-1.COMMIT"}, 409, "the transaction has changed since it was shown"),
    ],
)
def test_malformed_change_is_refused_and_changes_nothing(served, shop, one, changes, status, text):
    """The endpoint refuses a malformed change with the reason."""
    answer = served.client("t").post(path_of(one, "commit"), asked(one, **changes), JSON)
    assert status == answer.status_code
    assert text in answer.json()["error"]
    assert [] == ops_of(shop, one)


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", JSON, 405),
        ("PUT", JSON, 405),
        ("DELETE", JSON, 405),
        ("POST", {"content-type": "application/json"}, 401),
        ("POST", {**JSON, "authorization": "Bearer x"}, 401),
        ("POST", {**JSON, "content-type": "text/plain"}, 415),
        ("POST", {**JSON, "content-type": "application/x-www-form-urlencoded"}, 415),
        ("POST", {**JSON, "sec-fetch-site": "cross-site"}, 403),
        ("POST", {**JSON, "sec-fetch-site": "same-site"}, 403),
        ("POST", {**JSON, "origin": "https://evil.example"}, 403),
        ("POST", {**JSON, "origin": "null"}, 403),
        ("POST", {**JSON, "origin": "http://[bad"}, 403),
    ],
)
@pytest.mark.parametrize("verb", ["resume", "commit", "rollback"])
def test_unauthorised_request_changes_nothing(served, shop, one, verb, method, headers, status):
    """The endpoint refuses other methods, other sites, forms and wrong tokens."""
    assert status == served.client("t").request(method, path_of(one, verb), headers, asked(one)).status_code
    assert [] == ops_of(shop, one)


def test_without_a_token_nothing_can_be_changed(served, one):
    """Without a token the endpoint refuses each change, even from this machine."""
    answer = served.client().post(path_of(one, "commit"), asked(one), {"content-type": "application/json"})
    assert (403, "a change needs a token; configure http.token_file") == (
        answer.status_code,
        answer.json()["error"],
    )


def test_last_writer_of_a_partition_is_shown_with_the_time(served, wait_until):
    """The page shows the age of the owner's last record, so the age grows between two readings."""
    client = served.client()

    def ages():
        page = client.get("/console/groups/orders").text
        return re.findall(r"<td[^>]*>(\d+)s ago</td>", page)

    first = wait_until(ages, "owners")
    assert 2 == len(first)
    wait_until(lambda: min(map(int, ages())) > max(map(int, first)), "their age")


def test_guard_refuses_a_path_that_looks_open(served, one):
    """The guard reads the same path as the routes."""
    client = served.client("t")
    for prefix in ("/console/sign-in", "/console/static/", "/healthz"):
        for separator in ("%3F", "%23", "?", "/../groups/orders", "/..%2fgroups/orders", "%2f..%2fgroups%2forders"):
            answer = client.get(f"{prefix}{separator}{path_of(one)}")
            assert one not in answer.text.replace(f"to={prefix}", "")
            assert "orders.created" not in answer.text
    assert "/console" == client.get("/console/", {"authorization": "Bearer t"}).headers["location"]


def test_decision_is_in_the_log_of_the_process_too(served, one, caplog):
    """The line has operator, decision and reason, and the id as every other line writes it."""
    served.client("t").post(path_of(one, "commit"), asked(one), JSON)
    (record,) = [each for each in caplog.records if each.message == "operator.asked"]
    assert one == facts_of(record)["transaction_id"]
    assert ("orders", "Ann (api)", "commit", "customer called") == tuple(
        record.txcore[name] for name in ("group", "by", "verb", "reason")
    )


def test_a_body_that_is_too_large_is_refused(served, one):
    """The endpoint refuses a large body with status 413."""
    assert 413 == served.client("t").post(path_of(one, "commit"), b"x" * 70_000, JSON).status_code


def test_unknown_transactions_and_groups_are_not_found(served, one):
    """The endpoint answers 404 for an unknown transaction or group, and 400 for a malformed id."""
    client = served.client("t")
    other = f"{one[:-8]}00000000"
    assert 404 == client.post(path_of(other, "commit"), asked(other), JSON).status_code
    assert 404 == client.get(path_of(other), JSON).status_code
    assert 404 == client.get("/api/v1/groups/unused/transactions/abcdef", JSON).status_code
    assert 400 == client.get(path_of("xyz"), JSON).status_code
    assert 400 == client.post(path_of(one[-8:], "commit"), asked(one), JSON).status_code


def test_fence_is_asked_and_refuses_a_wrong_decision(served, shop):
    """The page shows the fence's answer; a decision against it needs its own confirmation, which the log records."""
    found = shop.orphans(2)
    (committed,), (gone,) = found[True], found[False]
    client = served.client("t")
    shown = client.get(path_of(committed), JSON).json()
    assert ("COMMIT", 1) == (shown["fence"]["answer"], shown["fence_row"]["state"])
    answer = client.post(path_of(committed, "rollback"), asked(committed), JSON)
    assert (409, "the database says COMMIT; --override-fence goes against it") == (
        answer.status_code,
        answer.json()["error"],
    )
    confirm = f"override {gone[-8:]}"
    answer = client.post(path_of(gone, "commit"), asked(gone, confirm=confirm, override_fence=True), JSON)
    assert 202 == answer.status_code
    assert [2] == [op.forced for op in ops_of(shop, gone)]


def test_change_that_holds_already_is_reported_so(served, one):
    """Resuming a pending transaction changes nothing."""
    answer = served.client("t").post(path_of(one, "resume"), asked(one), JSON)
    assert (202, "pending already") == (answer.status_code, answer.json()["text"])


def test_poison_is_taken_off_the_list(served, shop, wait_until):
    """Poison cannot be resumed or committed, and the page does not show its bytes; a rollback removes it."""
    batch = Recorder([HalfRecord("orders", 0, bytes(16), 0, b"\xc1 stray-bytes", ())])
    shop.backend.append_halves(batch)
    batch.wait(shop.backend, 10.0)
    client = served.client("t")
    parked = wait_until(lambda: client.get("/api/v1/groups/orders/parked", JSON).json()["parked"], "the poison")
    identity = parked[0]["transaction_id"]
    shown = client.get(path_of(identity), JSON)
    assert {"resume": "refused", "commit": "refused", "rollback": "act"} == {
        name: each["step"] for name, each in shown.json()["plans"].items()
    }
    assert "stray-bytes" not in shown.text
    assert 409 == client.post(path_of(identity, "resume"), asked(identity), JSON).status_code
    answer = client.post(path_of(identity, "rollback"), asked(identity), JSON)
    assert (202, "taken off the list") == (answer.status_code, answer.json()["text"])


# -- the console's forms ----------------------------------------------------------------------------------------------


def sign_in(client, **changes):
    fields = {"name": "Ann Lee", "token": "t"} | changes
    return client.post("/console/sign-in", urlencode(fields), FORM)


def cookie_of(answer):
    return answer.headers["set-cookie"].partition(";")[0]


def form_token(client, cookie, identity):
    page = client.get(f"/console/groups/orders/transactions/{identity}/commit", {"cookie": cookie}).text
    return page.partition('name="form_token" value="')[2].partition('"')[0]


def test_a_session_begins_with_the_token_and_a_name(served, one):
    """The cookie is for this site's pages only, and holds no token."""
    client = served.client("t")
    answer = sign_in(client, to="/console/groups/orders")
    assert (303, "/console/groups/orders") == (answer.status_code, answer.headers["location"])
    attributes = answer.headers["set-cookie"].lower()
    for each in ("httponly", "samesite=lax", "path=/console", f"max-age={LIFETIME_S}"):
        assert each in attributes
    page = client.get("/console", {"cookie": cookie_of(answer)})
    assert (200, True) == (page.status_code, "Ann Lee" in page.text)
    assert 401 == client.get("/api/v1/groups", {"cookie": cookie_of(answer)}).status_code, "the API takes no cookie"


@pytest.mark.parametrize("to", ["//evil.example/console/", "https://evil.example", "/console/sign-in", "/api", ""])
def test_signing_in_leads_nowhere_else(served, to):
    """The sign-in page redirects only to pages of the console."""
    assert "/console" == sign_in(served.client("t"), to=to).headers["location"]


@pytest.mark.parametrize(
    "changes", [{"token": "x"}, {"token": ""}, {"name": ""}, {"name": "\u0000"}, {"name": "a" * 61}]
)
def test_a_wrong_token_or_no_name_begins_nothing(served, changes):
    """The sign-in is refused without a cookie, and the page does not repeat the token."""
    answer = sign_in(served.client("secret-t"), **({"token": "secret-t"} | changes))
    assert (403, False) == (answer.status_code, "set-cookie" in answer.headers)
    assert "secret-t" not in answer.text


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"sec-fetch-site": "cross-site"}, {}),
        ({"origin": "https://evil.example"}, {}),
        ({"origin": "null"}, {}),
        ({}, {"form_token": "0" * 64}),
        ({}, {"form_token": ""}),
        ({"cookie": ""}, {}),
        ({"cookie": f"{COOKIE}=1.2.3.4"}, {}),
        ({"content-type": "text/plain"}, {}),
        ({"content-type": "application/json"}, {}),
    ],
)
def test_a_form_from_elsewhere_changes_nothing(served, shop, one, headers, fields):
    """Each defence refuses the form by itself: the origin, the session, the form's secret, the content type."""
    client = served.client("t")
    cookie = cookie_of(sign_in(client))
    said = {
        "form_token": form_token(client, cookie, one),
        "reason": "why",
        "confirmation": one[-8:],
    } | fields
    path = f"/console/groups/orders/transactions/{one}/commit"
    answer = client.post(path, urlencode(said), FORM | {"cookie": cookie} | headers)
    assert answer.status_code in {401, 403, 413}
    assert [] == ops_of(shop, one)
    answer = client.post(
        path, urlencode({**said, "form_token": form_token(client, cookie, one)}), FORM | {"cookie": cookie}
    )
    assert 303 == answer.status_code
    assert ["Ann Lee (console)"] == [op.by for op in ops_of(shop, one)]


def test_a_form_is_not_carried_out_by_get(served, shop, one):
    """A GET request changes nothing, even with correct fields."""
    client = served.client("t")
    cookie = cookie_of(sign_in(client))
    said = {"form_token": form_token(client, cookie, one), "reason": "why", "confirmation": one[-8:]}
    answer = client.get(f"/console/groups/orders/transactions/{one}/commit?{urlencode(said)}", {"cookie": cookie})
    assert 200 == answer.status_code
    assert [] == ops_of(shop, one)


def test_a_session_ends_by_time_and_with_the_token(clock, no_jitter):
    """A session ends after its lifetime and with another token; a forged cookie is not accepted."""
    token = Token("t")
    sessions = Sessions([Token("another"), token], clock, no_jitter)
    cookie = sessions.begin(token, "Ann")
    assert ("Ann", token) == (sessions.read(cookie).name, sessions.read(cookie).token)
    assert None is Sessions([Token("other")], clock, no_jitter).read(cookie)
    assert None is Sessions([], clock, no_jitter).read(cookie)
    for forged in (cookie[:-1], cookie.replace(".", "-"), f"{cookie}.", "9" + cookie, "", "\u00e4" * 4, "." * 3):
        assert None is sessions.read(forged)
    assert sessions.read(cookie).form_token not in cookie
    clock.advance(LIFETIME_S)
    assert None is sessions.read(cookie)


@pytest.mark.parametrize(
    ("text", "name"),
    [("Ann Lee", "Ann Lee"), ("  Ann \t Lee ", "Ann Lee"), ("Zoë", "Zoë"), ("", ""), ("--", ""), ("a\u202eb", "")],
)
def test_a_name_is_short_and_printable(text, name):
    """A name is printable text with single spaces; any other text gives an empty name."""
    assert name == name_of(text)


def test_pages_have_their_own_policy_and_name_no_other_host(served):
    """The policy forbids inline parts, other hosts and frames, and the pages name no other host."""
    client = served.client("t")
    cookie = {"cookie": cookie_of(sign_in(client))}
    for path in ("/console", "/console/groups/orders", "/console/nowhere", "/console/sign-in"):
        answer = client.get(path, cookie)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "style=" not in answer.text
        assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert txcore.__version__ in answer.text
    for name in ("console.css", "console.js", "icon.svg"):
        assert 200 == client.get(f"/console/static/{name}").status_code
    assert 404 == client.get("/console/static/../pages.py").status_code
    assert 303 == client.get("/console/groups/orders").status_code, "no cookie"
