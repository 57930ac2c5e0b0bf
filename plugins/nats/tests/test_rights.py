"""The text of a user's rights, without a server: targets, streams of targets, and the prefix of replies."""

from __future__ import annotations

import re

import pytest
from txcore_nats import PLUGIN

from txcore.errors import UsageError
from txcore.permissions import Access, Role


def rights(url="nats://host?stream=SHOP", **access):
    wanted = {"user": "svc", "group": "orders", "role": Role.PRODUCER, "targets": ["shop.orders"]} | access
    return PLUGIN.permissions_of(url, Access(**wanted))


@pytest.mark.parametrize(
    "target", [">", "*.orders", "txc.orders.h.0", "$JS.API.>", "_INBOX_billing.x", "a b", "a..b", "a.>.b", ""]
)
def test_a_target_that_covers_more_than_targets_is_refused(target):
    """No right is printed for a subject of NATS or txcore, or a pattern that covers these, or no subject at all."""
    with pytest.raises(UsageError, match="target"):
        rights(targets=[target])


def test_a_pattern_of_targets_is_printed():
    """A target may have wildcards after its first token, and quotes are escaped."""
    text = rights(targets=["shop.*.created", "shop.eu.>", 'shop."x"'])
    assert '"shop.*.created"\n    "shop.eu.>"\n    "shop.\\"x\\""\n' in text


def test_replies_arrive_where_the_user_listens():
    """The prefix of replies follows the user's name or the URL, and the URL of another user is refused."""
    assert 'subscribe: ["_INBOX_svc.>"]' in rights()
    assert 'subscribe: ["_INBOX_svc.>"]' in rights("nats://svc:pw@host?stream=SHOP")
    assert 'subscribe: ["_INBOX_a=2Eb.>"]' in rights(user="a.b")
    assert 'subscribe: ["own.replies.>"]' in rights("nats://host?inbox_prefix=own.replies")
    with pytest.raises(UsageError, match="login of 'other'"):
        rights("nats://other:pw@host?stream=SHOP")


@pytest.mark.parametrize("url", ["nats://s3cret@host?", "nats://host?creds=me.creds&", "nats://host?nkey_seed=seed&"])
def test_a_login_without_a_name_needs_a_prefix_for_its_replies(url):
    """The rights of a login that has no name are printed only if the URL has the prefix that the backend will use."""
    with pytest.raises(UsageError, match="needs inbox_prefix"):
        rights(url.rstrip("?&"))
    assert 'subscribe: ["own.>"]' in rights(f"{url}inbox_prefix=own")


def test_the_streams_of_targets_are_named_by_the_url():
    """Only without `stream` in the URL the user may see all streams; a domain has an API of its own."""
    assert '"$JS.API.STREAM.INFO.SHOP"\n    "$JS.API.STREAM.INFO.SALES"' in rights("nats://host?stream=SHOP,SALES")
    assert not re.search(r"STREAM\.NAMES|INFO\.\*", rights())
    assert '"$JS.eu.API.STREAM.NAMES"\n    "$JS.eu.API.STREAM.INFO.*"' in rights("nats://host?domain=eu")
