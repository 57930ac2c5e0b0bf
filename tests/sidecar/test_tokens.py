"""The endpoint's tokens: operators and observers, their groups, wrong ones, sessions that end, and proxies."""

from __future__ import annotations

import json
from http.cookies import SimpleCookie
from urllib.parse import urlencode

import pytest

from txcore.config import ConfigFileError, load
from txcore.sidecar.process import Sidecar
from txcore.sidecar.web import tokens
from txcore.sidecar.web.app import make_app
from txcore.sidecar.web.guard import Guard
from txcore.sidecar.web.sessions import COOKIE
from txcore.sidecar.web.tokens import ADDRESSES_MAX, DELAY_MAX_S, FAILURES_FREE, FORGOTTEN_S, Throttle, Token

OPERATOR = Token("the-operators-token")
OBSERVER = Token("the-observers-token", "http.tokens.watch", can_decide=False)
STRANGER = Token("a-token-for-others", "http.tokens.bills", groups=frozenset({"bills"}))
FORM = {"content-type": "application/x-www-form-urlencoded"}
GROUP_PATHS = ["", "/pending", "/parked", "/transactions/1234"]


@pytest.fixture
def client(served, clock):
    """A client of an endpoint with an operator, an observer, and an operator of another group."""
    served.clock = clock
    return served.client([OPERATOR, OBSERVER, STRANGER])


@pytest.fixture
def orphan(served, shop):
    """The id of an undecided transaction."""
    return next(iter(shop.orphans(1)[True]))


def bearer(token):
    return {"authorization": f"Bearer {token.secret}"}


def sign_in(client, token, headers=None, **fields):
    fields = {"name": "Ann Lee", "token": token.secret} | fields
    return client.post("/console/sign-in", urlencode(fields), FORM | (headers or {}))


def cookie_of(answer):
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


def events(caplog, name):
    return [record.txcore for record in caplog.records if record.message == name]


def form_token_of(page):
    return page.text.partition('name="form_token" value="')[2].partition('"')[0]


# -- two people -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["resume", "commit", "rollback"])
def test_an_observer_reads_and_changes_nothing_by_the_api(client, orphan, verb):
    """The observer's token reads every path, and each change is refused with a reason."""
    path = f"/api/v1/groups/orders/transactions/{orphan}"
    assert 200 == client.get(path, bearer(OBSERVER)).status_code
    body = json.dumps({"by": "Ann", "reason": "why", "confirm": orphan[-8:]})
    headers = {"content-type": "application/json"}
    answer = client.post(f"{path}/{verb}", body, headers | bearer(OBSERVER))
    assert (403, "this token may only read") == (answer.status_code, answer.json()["error"])
    if verb == "commit":
        assert 202 == client.post(f"{path}/{verb}", body, headers | bearer(OPERATOR)).status_code


def test_only_an_operators_session_resumes_what_a_list_shows(client):
    """An observer, a bearer token and an operator of another group do not get the form, nor does its POST pass."""
    path, fields = "/console/groups/orders/parked/resume", {"reason": "why", "confirmation": "resume 0", "mark": "1.2"}
    observer, operator = (cookie_of(sign_in(client, each)) for each in (OBSERVER, OPERATOR))
    for headers in (observer, bearer(OPERATOR)):
        assert 403 == client.get(path, headers).status_code
        token = form_token_of(client.get("/console", headers))
        assert 403 == client.post(path, urlencode(fields | {"form_token": token}), FORM | headers).status_code
    assert 404 == client.get(path, cookie_of(sign_in(client, STRANGER))).status_code
    assert "None of these can be resumed." in client.get(path, operator).text
    assert 403 == client.post(path, urlencode(fields | {"form_token": "x" * 43}), FORM | operator).status_code
    token = form_token_of(client.get("/console", operator))
    answer = client.post(path, urlencode(fields | {"form_token": token}), FORM | operator)
    assert (409, True) == (answer.status_code, "no longer parked" in answer.text)


def test_an_observer_reads_and_changes_nothing_in_the_console(client, orphan):
    """The pages say that the observer may only read; neither the form's page nor its POST gets through."""
    session = cookie_of(sign_in(client, OBSERVER))
    path = f"/console/groups/orders/transactions/{orphan}"
    page = client.get(path, session)
    assert (200, True) == (page.status_code, "This token may only read." in page.text)
    assert f'href="{path}/commit"' not in page.text
    assert 403 == client.get(f"{path}/commit", session).status_code
    fields = {"form_token": form_token_of(page), "reason": "why", "confirmation": orphan[-8:]}
    answer = client.post(f"{path}/commit", urlencode(fields), FORM | session)
    assert (403, True) == (answer.status_code, "this token may only read" in answer.text)
    operator = cookie_of(sign_in(client, OPERATOR))
    assert f'href="{path}/commit"' in client.get(path, operator).text


@pytest.mark.parametrize("path", GROUP_PATHS)
def test_a_token_does_not_see_the_groups_of_others(client, path):
    """A group that is not the token's is as unknown as one that does not exist, in API and console."""
    session = cookie_of(sign_in(client, STRANGER))
    for answer in (
        client.get(f"/api/v1/groups/orders{path}", bearer(STRANGER)),
        client.get(f"/console/groups/orders{path}", session),
        client.get(f"/console/groups/%6frders{path}", session),
    ):
        assert (404, "this checker has no such group") == (answer.status_code, answer.json()["error"])


def test_lists_of_groups_have_those_of_the_token(client):
    """The operator of another group sees an empty list."""
    assert ["orders"] == [each["group"] for each in client.get("/api/v1/groups", bearer(OBSERVER)).json()["groups"]]
    assert [] == client.get("/api/v1/groups", bearer(STRANGER)).json()["groups"]
    assert "orders" not in client.get("/console", cookie_of(sign_in(client, STRANGER))).text
    assert "orders" in client.get("/console", cookie_of(sign_in(client, OBSERVER))).text


def test_tokens_are_not_in_their_repr():
    """A token in a log or a traceback shows its name only."""
    assert OPERATOR.secret not in repr(OPERATOR)
    assert "http.token" in repr(OPERATOR)


# -- wrong tokens -----------------------------------------------------------------------------------------------------


def test_sign_ins_and_failures_are_logged_without_tokens(client, caplog):
    """Each event names the person, the token's name and the address, and holds no token."""
    caplog.set_level("INFO")
    session = cookie_of(sign_in(client, OBSERVER))
    sign_in(client, Token("a-wrong-token"))
    client.get("/api/v1/groups", bearer(Token("another-wrong-token")))
    page = client.get("/console", session)
    client.post("/console/sign-out", urlencode({"form_token": form_token_of(page)}), FORM | session)
    person = {"name": "Ann Lee", "token": "http.tokens.watch", "address": "127.0.0.1"}
    assert [person] == events(caplog, "http.signed_in")
    assert [person] == events(caplog, "http.signed_out")
    assert [("/console/sign-in", 1), ("/api/v1/groups", 2)] == [
        (each["path"], each["failures"]) for each in events(caplog, "http.token_refused")
    ]
    assert "-token" not in " ".join(str(vars(record)) for record in caplog.records)


def test_wrong_tokens_are_delayed_and_nothing_else_is(client, clock):
    """After five wrong tokens even the right one waits; a session, health and other paths do not."""
    session = cookie_of(sign_in(client, OPERATOR))
    for _ in range(FAILURES_FREE):
        assert 401 == client.get("/api/v1/groups", bearer(Token("wrong"))).status_code
    answer = client.get("/api/v1/groups", bearer(OPERATOR))
    assert (429, "1") == (answer.status_code, answer.headers["retry-after"])
    answer = sign_in(client, OPERATOR)
    assert (429, "1", False) == (answer.status_code, answer.headers["retry-after"], "set-cookie" in answer.headers)
    assert "try again in 1 s" in answer.text
    assert [200, 200, 200] == [client.get(path, session).status_code for path in ("/healthz", "/metrics", "/console")]
    clock.advance(1)
    assert 200 == client.get("/api/v1/groups", bearer(OPERATOR)).status_code
    assert 401 == client.get("/api/v1/groups", bearer(Token("wrong"))).status_code, "a right one has ended the delay"


def test_the_delay_grows_and_is_bounded(clock):
    """Each wrong token doubles the delay, up to its maximum, by address; time without one forgets them."""
    throttle, delays = Throttle(clock), []
    for _ in range(FAILURES_FREE + 8):
        throttle.failed("a")
        delays.append(throttle.wait_s("a"))
        clock.advance(delays[-1])
        assert 0 == throttle.wait_s("a")
    assert [0.0] * (FAILURES_FREE - 1) + [1.0, 2.0, 4.0, 8.0, 16.0, 32.0] + [DELAY_MAX_S] * 3 == delays
    throttle.failed("a")
    assert 0 == throttle.wait_s("b")
    clock.advance(FORGOTTEN_S)
    assert 1 == throttle.failed("a")
    for number in range(ADDRESSES_MAX + 10):
        throttle.failed(str(number))
    assert ADDRESSES_MAX == len(throttle._failures)


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_signing_out_ends_a_copy_of_the_cookie_too(client):
    """After the sign-out the server does not accept the cookie again; other sessions continue."""
    first, second = cookie_of(sign_in(client, OPERATOR)), cookie_of(sign_in(client, OBSERVER))
    page = client.get("/console", first)
    answer = client.post("/console/sign-out", urlencode({"form_token": form_token_of(page)}), FORM | first)
    assert (303, "/console/sign-in") == (answer.status_code, answer.headers["location"])
    assert [303, 200] == [client.get("/console", each).status_code for each in (first, second)]


@pytest.mark.parametrize(
    ("trusted", "headers", "is_secure"),
    [
        (["127.0.0.1"], {"x-forwarded-proto": "https"}, True),
        (["127.0.0.1"], {"x-forwarded-proto": "http"}, False),
        (["127.0.0.1"], {}, False),
        (["192.0.2.1"], {"x-forwarded-proto": "https"}, False),
        ([], {"x-forwarded-proto": "https"}, False),
    ],
)
def test_a_trusted_proxy_with_tls_makes_the_cookie_secure(served, make_client, trusted, headers, is_secure):
    """The proxy's header is believed from the configured addresses only."""
    app = make_app(served.sidecar, Guard([OPERATOR]))
    answer = sign_in(make_client(app, trusted_proxies=trusted), OPERATOR, headers)
    assert is_secure == bool(SimpleCookie(answer.headers["set-cookie"])[COOKIE]["secure"])


def test_failures_count_for_the_address_that_a_trusted_proxy_names(served, make_client):
    """Wrong tokens from one client of the proxy do not delay its other clients."""
    client = make_client(make_app(served.sidecar, Guard([OPERATOR])), trusted_proxies=["127.0.0.1"])
    stranger, other = {"x-forwarded-for": "192.0.2.7"}, {"x-forwarded-for": "192.0.2.8"}
    for _ in range(FAILURES_FREE):
        client.get("/api/v1/groups", stranger | bearer(Token("wrong")))
    answers = [client.get("/api/v1/groups", each | bearer(OPERATOR)).status_code for each in (stranger, other)]
    assert [429, 200] == answers


# -- configuration ----------------------------------------------------------------------------------------------------

GROUP = '[backends.b]\nurl = "sqlite:///b.db"\n[groups.orders]\nlistener = "a:b"\n'


def loaded(folder, text, **environment):
    (folder / "txcore.toml").write_text(GROUP + text)
    return load(folder / "txcore.toml", environment=environment)


def test_tokens_come_from_the_configuration(tmp_path):
    """The operators' token, and further ones with role and groups; without any there is none."""
    found = loaded(
        tmp_path,
        '[http]\ntoken_env = "A"\n[http.tokens.watch]\ntoken_env = "B"\ngroups = ["orders"]\n'
        '[http.tokens.night]\ntoken_env = "C"\nrole = "operator"\n',
        A="a" * 16,
        B="b" * 16,
        C="c" * 16,
    )
    assert (
        Token("a" * 16),
        Token("b" * 16, "http.tokens.watch", can_decide=False, groups=frozenset({"orders"})),
        Token("c" * 16, "http.tokens.night"),
    ) == tokens.tokens_of(found)
    assert () == tokens.tokens_of(loaded(tmp_path, ""))
    assert not any(secret * 16 in repr(found) for secret in "abc")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('token_env = "SHORT"', "http.token: the token has fewer than 16 characters: make one with"),
        ('[http.tokens.x]\ntoken_env = "SHORT"', "http.tokens.x.token: the token has fewer than 16 characters"),
        ('token_env = "LONG"\n[http.tokens.x]\ntoken_env = "LONG"', "another name has the same token"),
        ("[http.tokens.x]\n", "http.tokens.x: needs token_file or token_env"),
        (
            '[http.tokens.x]\ntoken_env = "LONG"\ngroups = ["order"]',
            "no [groups.order]; did you mean 'orders'",
        ),
        ('[http.tokens.x]\ntoken_env = "LONG"\nrole = "admin"', "must be observer or operator"),
    ],
)
def test_mistakes_with_tokens_are_one_clear_sentence(tmp_path, text, problem):
    """The configuration is refused, with the key and without the token."""
    with pytest.raises(ConfigFileError) as raised:
        loaded(tmp_path, f"[http]\n{text}\n", SHORT="s3cret", LONG="l" * 16)
    assert problem in str(raised.value)
    assert 1 == len(raised.value.problems)
    assert "s3cret" not in str(raised.value)


def test_any_token_lets_another_host_be_served(tmp_path):
    """An observer's token protects the endpoint as well as an operator's."""
    assert loaded(tmp_path, '[http]\nhost = "0.0.0.0"\n[http.tokens.x]\ntoken_env = "X"\n', X="x" * 16)


def test_a_changed_token_needs_a_restart(tmp_path):
    """A reload names each token that differs."""
    text = '[http]\ntoken_env = "A"\n[http.tokens.x]\ntoken_env = "X"\n'
    sidecar = Sidecar(loaded(tmp_path, text, A="a" * 16, X="x" * 16))
    assert [] == sidecar.reload(loaded(tmp_path, text, A="a" * 16, X="x" * 16))
    assert ["http.tokens.x.token"] == sidecar.reload(loaded(tmp_path, text, A="a" * 16, X="y" * 16))
    assert sidecar.stop()
