"""The options of a URL, their effects, and options that are refused by name."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from txcore_nats import PLUGIN, parse_url
from txcore_nats.options import GroupNames, Options, capabilities_of

import txcore
from txcore.errors import ConfigError
from txcore.records import LogKind, OpKind


def parsed(url="nats://h", **options):
    return parse_url(f"{url}?{urlencode(options)}")


def test_a_bare_url_has_the_defaults():
    """A URL needs only a host, with or without a port; all options have their defaults."""
    assert Options(servers=("nats://h:4222",)) == parsed()
    assert parsed("nats://h:1").servers == ("nats://h:1",)


def test_several_hosts_and_an_account():
    """Hosts are separated by commas; user and password are percent-decoded."""
    options = parsed("nats://me:p%40ss@a:1,b,[::1]:2")
    assert options.servers == ("nats://a:1", "nats://b:4222", "nats://[::1]:2")
    assert (options.user, options.password, options.token) == ("me", "p@ss", "")
    assert parsed("nats://s3cret@a").token == "s3cret"


def test_secrets_are_in_no_representation():
    """Neither the options nor the backend show password or token."""
    options = parsed("nats://me:hidden@a")
    assert "hidden" not in repr(options)
    assert "hidden" not in repr(parsed("nats://hidden@a"))
    assert "hidden" not in repr(PLUGIN.connect("nats://me:hidden@a"))


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"unknown": "1"}, "unknown"),
        ({"servers": "x"}, "servers"),
        ({"password": "x"}, "password"),
        ({"partitions": "0"}, "partitions"),
        ({"partitions": "four"}, "partitions"),
        ({"lease_s": "0"}, "lease_s"),
        ({"delivery_timeout_s": "inf"}, "delivery_timeout_s"),
        ({"delivery_timeout_s": "nan"}, "delivery_timeout_s"),
        ({"tls": "perhaps"}, "tls"),
        ({"release": "sometimes"}, "release"),
        ({"stream": "A,,B"}, "stream"),
        ({"stream": "a.b"}, "stream"),
        ({"release": "atomic", "stream": "A,B"}, "stream"),
        ({"inbox_prefix": "a.*"}, "inbox_prefix"),
        ({"inbox_prefix": "a..b"}, "inbox_prefix"),
        ({"release": "atomic", "stream": "a.b"}, "stream"),
        ({"domain": "a b"}, "domain"),
        ({"tls_cert": "c.pem"}, "tls_key"),
        ({"tls_key": "k.pem"}, "tls_cert"),
        ({"creds": "a", "nkey_seed": "b"}, "creds"),
    ],
)
def test_a_wrong_option_is_named(options, key):
    """The error's key is the option's name."""
    with pytest.raises(ConfigError) as raised:
        parsed(**options)
    assert key == raised.value.key


@pytest.mark.parametrize("url", ["nats://h:x", "nats://:1", "nats://a,,b"])
def test_an_address_that_is_none_is_refused(url):
    """A URL with a host without a name, or with a port that is no number, is refused."""
    with pytest.raises(ConfigError):
        parse_url(url)


def test_replies_have_a_prefix_for_each_user():
    """The user's name is one token of the prefix, or the option is the prefix; without a name it is NATS's own."""
    assert parsed("nats://a.b:pw@h").inbox == "_INBOX_a=2Eb"
    assert parsed("nats://token@h").inbox == parsed().inbox == "_INBOX"
    assert parsed("nats://me:pw@h", inbox_prefix="replies.me").inbox == "replies.me"


def test_every_form_promises_what_its_backend_promises():
    """The plugin has one `Guarantees` for each form of the URL, with the capabilities of the opened backend."""
    forms = {"nats://user:password@host:4222": {}, "nats://host:4222?release=atomic": {}}
    assert list(forms) == [each.url for each in PLUGIN.guarantees]
    for guarantees in PLUGIN.guarantees:
        backend = txcore.connect(guarantees.url)
        assert guarantees.capabilities == backend.capabilities
        backend.close().result(5)


def test_capabilities_follow_from_the_options():
    """Capabilities follow the options for timeouts, the duplicate window and the mode of release."""
    plain, atomic = capabilities_of(parsed()), capabilities_of(parsed(release="atomic", stream="S"))
    assert (plain.atomic_release, plain.resolution_is_unique, plain.fences_checkers) == (False, True, False)
    assert (atomic.atomic_release, atomic.resolution_is_unique, atomic.fences_checkers) == (True, True, True)
    assert pytest.approx(capabilities_of(parsed(delivery_timeout_s="5")).release_time_max_s) == 5.1
    assert capabilities_of(parsed(duplicate_window_s="7")).deduplicates_targets_s == 7


def test_groups_have_names_of_their_own():
    """Bytes that a token may not have are escaped, so no two groups share a stream; bad lengths are refused."""
    names = [GroupNames(group, Options()) for group in ("a.b", "a=2Eb", "a b", "ä", "a_b", "a-b", "A-B")]
    assert len(names) == len({each.stream(LogKind.HALF) for each in names})
    for each in names:
        assert not set(each.stream(LogKind.OP)) & set(" .*>")
    with pytest.raises(ConfigError):
        GroupNames("", Options())
    with pytest.raises(ConfigError):
        GroupNames("x" * 200, Options())


def test_only_ends_share_a_subject():
    """All ends of a transaction share a subject; journal records and marks have other subjects."""
    names, identity = GroupNames("g", Options()), b"i" * 16
    ends = {names.op_subject(3, kind, identity) for kind in (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD)}
    assert {names.final_subject(3, identity)} == ends
    others = {names.op_subject(3, kind, identity) for kind in (OpKind.CHECKED, OpKind.CLAIM, OpKind.TICK)}
    assert len(others - ends) == 3
    assert all(subject.startswith("txc.g.op.3.") for subject in ends | others)
    shared = GroupNames("g", parsed(release="atomic", stream="S"))
    assert (shared.stream(LogKind.OP), shared.subject(LogKind.OP, 3)) == ("S", "txcs.S.g.op.3.>")
