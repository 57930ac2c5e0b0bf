"""Passwords in URLs: no error and no `repr` shows a part of one, however badly it is encoded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txcore.config import ConfigFileError, load
from txcore.config.loading import masked
from txcore.config.sources import Simple
from txcore.errors import UsageError
from txcore.registry import known_schemes, plugin_for
from txcore.sqlfence.engines import open_engine

LETTERS = "QXZ7"
"""Letters of the passwords; no text of txcore has them side by side."""
PASSWORDS = st.text(st.sampled_from(LETTERS + "/?#@:%[]&=, "), min_size=3, max_size=16)
PART_SIZE = 3
DATABASES = ("postgresql+psycopg", "mysql+pymysql", "mariadb+pymysql")


def shown_by(error):
    """Return all that a log shows of an error: its text, its `repr`, and those of its causes."""
    found = []
    while error is not None:
        found += [str(error), repr(error), str(getattr(error, "key", ""))]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(found)


def parts_of(password):
    """Return each part of *password* that would betray it: three characters, two of them letters side by side."""
    parts = {password[at : at + PART_SIZE] for at in range(len(password) - PART_SIZE + 1)}
    return [part for part in parts if any(a in LETTERS and b in LETTERS for a, b in pairwise(part))]


def assert_hidden(password, *texts):
    assert [] == [part for part in parts_of(password) for text in texts if part in text]


def urls_of(scheme, password):
    """Return URLs with *password*; in NATS a user without a password is a token."""
    token = [f"{scheme}://{password}@h"] if scheme == "nats" and ":" not in password else []
    return [f"{scheme}://user:{password}@h:1234/", f"{scheme}://user:{password}@h,h2/?partitions=4", *token]


@pytest.mark.parametrize("scheme", known_schemes())
@given(password=PASSWORDS)
@example("QXZ/QXZ")
@example("7/QXZ")
@example("7?QXZ=QXZ")
@example("7?partitions=QXZ")
@example("Q@XZQ/QXZ")
@example("[QXZ]")
def test_no_backend_shows_a_password(scheme, password):
    """A backend's URL is parsed, or refused with a text that holds no part of the password; neither does a `repr`."""
    plugin = plugin_for(f"{scheme}://")
    for url in urls_of(scheme, password):
        try:
            settings = plugin.parse_url(url)
        except UsageError as error:
            assert_hidden(password, shown_by(error))
        else:
            if scheme in {"sqlite", "memory"}:
                continue  # they have no passwords; what is given is the name of a file or of the broker
            assert_hidden(password, repr(settings))


@pytest.mark.parametrize("driver", DATABASES)
@given(password=PASSWORDS)
@example("Q@XZQ@XZ")
@example("Q@X:ZQX")
@example("Q@X?QXZ")
@example("@/QXZ")
def test_no_database_url_shows_a_password(driver, password):
    """An engine's `repr` and the errors about a database's URL hold no part of the password."""
    for url in (f"{driver}://user:{password}@h:1234/shop", f"{driver}://user:{password}@h/shop?x=y"):
        try:
            engine = open_engine(url, "a test", lambda _: {})
        except UsageError as error:
            assert_hidden(password, shown_by(error))
        else:
            where = f"{engine.url.host} {engine.url.port} {engine.url.database}"  # what drivers show
            assert_hidden(password, repr(engine), where)


@given(password=PASSWORDS)
def test_no_configuration_shows_a_password(password):
    """Neither the errors nor the `repr` of a configuration hold a part of a password in one of its URLs."""
    broker, database, callback = (f"{scheme}://user:{password}@h:1/" for scheme in ("kafka", "postgresql", "http"))
    for simple in (
        Simple(broker, "orders", database),
        Simple(broker, "orders", callback=callback),
    ):
        try:
            loaded = load(simple=simple, environment={})
        except ConfigFileError as error:
            assert_hidden(password, shown_by(error))
        else:
            assert_hidden(password, repr(loaded.config.backends), repr(loaded.config.databases))
    assert_hidden(password, masked(broker), masked(database))
