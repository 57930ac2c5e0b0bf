"""Options of URLs: what is declared is parsed, refused by name, and described."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txcore.backends.options import (
    Server,
    TlsOptions,
    account_of,
    choice,
    option_table,
    options_of,
    parse_options,
    seconds,
    secret,
    servers_of,
    split_url,
    switch,
    text,
    whole,
)
from txcore.backends.tls import ContextOptions
from txcore.errors import ConfigError
from txcore.registry import known_schemes, plugin_for

TYPED = st.text(st.characters(codec="utf-8"), max_size=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared(TlsOptions):
    """One option of each kind, and one field that is none."""

    user: str = ""
    count: int = whole(4, 1, 256, "how many")
    wait_s: float = seconds(2.5, 0.5, 60, "how long")
    fast: bool = switch(False, "whether")
    mode: str = choice("plain", ("plain", "Atomic"), "which")
    name: str = text("what")
    word: str = secret("hidden")


def parsed(**options):
    return parse_options(Declared, f"x://h?{urlencode(options)}")


def refused(**options):
    """Return the key of the error about options, or "" if they are taken."""
    try:
        parsed(**options)
    except ConfigError as error:
        return error.key
    return ""


DECLARED = {scheme: plugin_for(f"{scheme}://").options for scheme in known_schemes()}


@pytest.mark.parametrize("declared", [Declared, ContextOptions, *DECLARED.values()])
def test_every_default_is_what_its_text_in_the_table_says(declared):
    """The default that a table shows is in range and gives the default again, for each option of each backend."""
    rows = [line.split(" | ") for line in option_table(declared).splitlines()[2:]]
    assert [name for name, *_ in rows] == [f"| `{name}`" for name in options_of(declared)]
    for name, _, default, meaning in rows:
        key, shown = name.strip("|` "), default.strip("`")
        assert meaning != " |"
        if shown:
            value = getattr(parse_options(declared, f"x://?{key}={shown}"), key)
            assert (value, type(value)) == (getattr(declared(), key), type(getattr(declared(), key)))


@given(st.integers(), st.floats())
def test_a_number_out_of_range_is_refused_with_its_key(count, wait_s):
    """A number is taken from its least to its greatest value, and any other one is a ConfigError with its key."""
    for key, value, low, high in (("count", count, 1, 256), ("wait_s", wait_s, 0.5, 60)):
        if low <= value <= high:
            assert getattr(parsed(**{key: value}), key) == value
        else:
            assert refused(**{key: value}) == key


@given(st.sampled_from(list(options_of(Declared))), TYPED)
def test_whatever_is_typed_is_a_value_or_an_error_with_its_key(key, typed):
    """Any text is either a value of the option or a ConfigError with its key, or with that of its missing neighbour."""
    neighbours = {"tls_key": "tls_cert", "tls_cert": "tls_key"}
    assert refused(**{key: typed}) in {"", key, neighbours.get(key)}


@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=12))
def test_a_secret_is_in_no_repr_and_no_error(word):
    """A secret is given to the backend; neither the settings nor an error about it or its neighbours show it."""
    options = parsed(word=word, tls_key="k", tls_cert="c", tls_key_password=word)
    assert (options.word, options.tls_key_password) == (word, word)
    assert word not in repr(options)
    for wrong in ({"tls_key_password": word}, {"word": word, "count": "0"}, {"word": word, "nope": "1"}):
        with pytest.raises(ConfigError) as raised:
            parsed(**wrong)
        assert word not in str(raised.value)


def test_an_unknown_option_is_named_with_the_known_ones():
    """The error about an unknown option lists the known ones; a field that is not declared is none of them."""
    with pytest.raises(ConfigError) as raised:
        parse_options(Declared, "nats://h?user=me")
    assert raised.value.key == "user"
    assert str(raised.value) == (
        "the nats backend has no option 'user'; it has count, wait_s, fast, mode, name, word, tls, tls_verify, tls_ca, "
        "tls_cert, tls_key, tls_key_password"
    )


@pytest.mark.parametrize(
    ("query", "key", "sentence"),
    [
        ("count=1&count=2", "count", "option 'count' appears twice in the backend URL"),
        ("count=2.5", "count", "count is a whole number from 1 to 256, not '2.5'"),
        ("wait_s=nan", "wait_s", "wait_s is a number of seconds from 0.5 to 60, not 'nan'"),
        ("fast=maybe", "fast", "fast is true or false, not 'maybe'"),
        ("mode=other", "mode", "mode is one of plain, Atomic, not 'other'"),
        ("name=", "name", "name is empty"),
        ("word", "word", "word is empty"),
    ],
)
def test_what_is_wrong_is_a_sentence(query, key, sentence):
    """Each kind of option has one sentence for a wrong value."""
    with pytest.raises(ConfigError) as raised:
        parse_options(Declared, f"x://h?{query}")
    assert (raised.value.key, str(raised.value)) == (key, sentence)


@pytest.mark.parametrize(("word", "value"), [("TRUE", True), ("1", True), ("yes", True), ("off", False), ("No", False)])
def test_a_switch_has_few_words(word, value):
    """A switch is turned by true, 1, yes, on and their opposites, in any letters."""
    assert parsed(fast=word).fast is value


def test_a_choice_has_its_declared_letters():
    """A choice may be written in any letters, and has the declared ones."""
    assert parsed(mode="ATOMIC").mode == "Atomic"


@pytest.mark.parametrize(
    ("query", "is_encrypted"),
    [
        *(("", False), ("tls=false", False), ("tls=true", True), ("tls_ca=a", True), ("tls_verify=false", True)),
        *(("tls_cert=c&tls_key=k", True), ("tls_server_name=n", True), ("tls_verify=true", False)),
    ],
)
def test_every_option_of_tls_implies_it(query, is_encrypted):
    """Each option of TLS encrypts, also one that a backend adds; only `tls=false` is no wish."""
    assert parse_options(ContextOptions, f"x://h?{query}").is_encrypted is is_encrypted


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("tls_cert=c", "tls_key"),
        ("tls_key=k", "tls_cert"),
        ("tls_key_password=p", "tls_key_password"),
        ("tls=false&tls_ca=a", "tls"),
        ("tls=no&tls_verify=false", "tls"),
    ],
)
def test_options_of_tls_that_do_not_fit_are_named(query, key):
    """Half of a certificate, a password without its key, and TLS that is both on and off, are refused."""
    with pytest.raises(ConfigError) as raised:
        parse_options(TlsOptions, f"x://h?{query}")
    assert raised.value.key == key


@given(TYPED, st.none() | TYPED, st.integers(1, 65_535))
def test_an_account_and_servers_come_through_any_url(user, password, port):
    """User and password may hold any characters, percent-encoded; servers have their port or the default one."""
    account = quote(user, safe="") + ("" if password is None else ":" + quote(password, safe=""))
    url = f"x://{account}@one:{port},two,[::1]:{port},[fe80::1]/path?count=2"
    assert account_of(url) == (user, password)
    assert servers_of(url, 7) == (("one", port), ("two", 7), ("::1", port), ("fe80::1", 7))
    assert [str(each) for each in servers_of(url, 7)][2:] == [f"[::1]:{port}", "[fe80::1]:7"]
    assert parse_options(Declared, url, user=user).count == 2


def test_a_url_is_split_where_its_parts_begin():
    """The scheme is in lower case, parts that are missing are empty, and spaces and line ends around it are dropped."""
    assert split_url(" X://h/p?q=1#f\n") == ("x", "h", "/p", "q=1", "f")
    assert split_url("sqlite:///a b.db") == ("sqlite", "", "/a b.db", "", "")
    assert split_url("h/p") == ("", "", "h/p", "", "")


def test_a_url_without_an_account_has_none():
    """Without an `@` there is no user; an empty password is not a missing one."""
    assert [account_of(f"x://{each}h") for each in ("", "me@", "me:@")] == [("", None), ("me", None), ("me", "")]
    assert str(Server("h", 1)) == "h:1"


@pytest.mark.parametrize("hosts", ["", "a,,b", "a:", "a:0", "a:65536", "a:x", "::1", "a b:1:2"])
def test_servers_that_are_none_are_refused_without_being_shown(hosts):
    """A missing name or a wrong port is a ConfigError for `url`, which does not repeat what may be a password."""
    with pytest.raises(ConfigError, match=r"x://user:password@host:7,other:7") as raised:
        servers_of(f"x://{hosts}", 7)
    assert raised.value.key == "url"
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["x://me:s3cret@[::1", "x://me:s3cret@h\x07", "x://me:s3cret/@h", "x://me:1?s3cret@h", "x://h/?key=s3cret@"]
)
def test_a_url_that_cannot_be_split_is_not_shown(url):
    """Brackets, control characters, and an `@` after the servers are a ConfigError that repeats no password."""
    with pytest.raises(ConfigError) as raised:
        split_url(url)
    assert raised.value.key == "url"
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
def test_what_no_repr_may_show_is_declared_so(declared):
    """Passwords and tokens of each backend are in no repr."""
    hidden = [each.name for each in fields(declared) if each.name.endswith("password") or each.name == "token"]
    assert "s3cret" not in repr(declared(**dict.fromkeys(hidden, "s3cret"), **_key(declared)))


def _key(declared):
    return {"tls_cert": "c", "tls_key": "k"} if issubclass(declared, TlsOptions) else {}


def test_a_context_names_the_file_that_cannot_be_used(tmp_path):
    """Without TLS there is no context; a file that is missing or no certificate is a ConfigError with its option."""
    assert ContextOptions().tls_context() is None
    strange = tmp_path / "strange.pem"
    strange.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"tls_ca='/nowhere/ca.pem' cannot be used") as raised:
        ContextOptions(tls_ca="/nowhere/ca.pem").tls_context()
    assert raised.value.key == "tls_ca"
    with pytest.raises(ConfigError) as raised:
        ContextOptions(tls_cert=str(strange), tls_key=str(strange), tls_key_password="s3cret").tls_context()
    assert raised.value.key == "tls_cert"
    assert "s3cret" not in str(raised.value)
    assert ContextOptions(tls_verify=False).tls_context().check_hostname is False
    assert math.inf > ContextOptions(tls=True).tls_context().verify_mode > 0
