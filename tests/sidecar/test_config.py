"""The configuration: its values, their sources, and the report of every mistake."""

from __future__ import annotations

import dataclasses
import tomllib

import msgspec
import pytest

from txcore import ConfigError, Limits
from txcore.config import Config, ConfigFileError, LimitsSection, load
from txcore.config.lines import lines_of
from txcore.config.loading import masked
from txcore.config.sample import sample
from txcore.config.schema import HttpSection, TokenSection
from txcore.config.sources import Simple

GOOD = """
[backends.main]
url = "sqlite:///broker.db"

[databases.shop]
url = "sqlite:///shop.db"

[groups.orders]
database = "shop"
"""
IN_SECONDS = "unknown key; durations are in seconds and end in _s"
#: Each wrong configuration: the text added to the good one (or replacing it, after "="), and its message.
WRONG = {
    "misspelt section": ("[grops.x]\n", "{file}:11: grops: unknown key; did you mean 'groups'?"),
    "misspelt key": (
        '[groups.orders.callback]\nurll = "http://h/"\n',
        "{file}:12: groups.orders.callback.urll: unknown key; did you mean 'url'?",
    ),
    "nothing near": (
        "[checker]\nzzz = 1\n",
        "{file}:12: checker.zzz: unknown key; known here: member, shutdown_s, restart_s, restart_max_s, tracing",
    ),
    "milliseconds in the key": (
        "[groups.orders.policy]\ninterval_ms = 1500\n",
        f"{{file}}:12: groups.orders.policy.interval_ms: {IN_SECONDS}: interval_s = 1.5",
    ),
    "no unit in the key": (
        '[groups.orders.policy]\nimmunity = "2m"\n',
        f"{{file}}:12: groups.orders.policy.immunity: {IN_SECONDS}: immunity_s = 120",
    ),
    "unit in the value": (
        '[groups.orders.limits]\nretry_s = "500ms"\n',
        "{file}:12: groups.orders.limits.retry_s: '500ms' is no number of seconds; write retry_s = 0.5",
    ),
    "key of another section": (
        "interval_s = 60\n",
        "{file}:10: groups.orders.interval_s: unknown key; it belongs in [groups.orders.policy]",
    ),
    "misspelt key of another section": (
        "check_maxx = 6\n",
        "{file}:10: groups.orders.check_maxx: unknown key; did you mean 'check_max' (in [groups.orders.policy])?",
    ),
    "out of range": (
        "[groups.orders]\npolicy = { check_max = 0 }\n",
        "{file}:10: groups.orders.policy.check_max: must be a whole number >= 1, not 0",
    ),
    "no whole number": (
        "policy.check_max = 2.5\n",
        "{file}:10: groups.orders.policy.check_max: must be a whole number, not 2.5",
    ),
    "text for a switch": ('http.enabled = "yes"\n', "{file}:2: http.enabled: must be true or false, not 'yes'"),
    "no such choice": (
        '[log]\nlevel = "loud"\n',
        "{file}:12: log.level: must be debug, info, warning or error, not 'loud'",
    ),
    "value for a section": (
        "http = 8080\n",
        f"{{file}}:2: http: must be a table with {', '.join(HttpSection.__struct_fields__)}",
    ),
    "value for a name": ("groups.orders = 1\n", "{file}:2: groups.orders: must be a table: [groups.orders]"),
    "list of groups": (
        '=[[groups]]\nname = "orders"\n',
        "{file}:1: groups: must hold a table for each name, such as [groups.main]",
    ),
    "no group": (
        '=[backends.main]\nurl = "sqlite:///b.db"\n',
        "{file}: groups: no group to check; add one: [groups.NAME]",
    ),
    "unknown backend": (
        'backend = "mainn"\n',
        "{file}:10: groups.orders.backend: there is no [backends.mainn]; did you mean 'main'?",
    ),
    "which backend": (
        '[backends.other]\nurl = "sqlite:///o.db"\n',
        "{file}:8: groups.orders: needs a backend; say which: main, other",
    ),
    "unknown database": (
        '[groups.bills]\ndatabase = "shopp"\n',
        "{file}:12: groups.bills.database: there is no [databases.shopp]; did you mean 'shop'?",
    ),
    "no source of answers": (
        "[groups.bills]\n",
        "{file}:11: groups.bills: no source of answers: give it a database (its fence), a listener or a callback",
    ),
    "two to ask": (
        'listener = "shop:listener"\ncallback.url = "http://127.0.0.1:1/check"\n',
        "{file}:11: groups.orders.callback: a listener is given too; one of them answers for halves without a fence",
    ),
    "no attribute": (
        'listener = "shop"\n',
        "{file}:10: groups.orders.listener: 'shop' is no module:attribute",
    ),
    "no URL": (
        '[databases.b]\nurl = "localhost"\n',
        "{file}:12: databases.b.url: is no URL; it looks like scheme://…",
    ),
    "URL missing": ("[databases.other]\n", "{file}:11: databases.other: needs url, url_file or url_env"),
    "URL twice": (
        '[databases.other]\nurl = "sqlite:///a.db"\nurl_env = "URL"\n',
        "{file}:13: databases.other.url_env: url is given too; keep one of them",
    ),
    "metrics that nothing would read": (
        '[audit]\ntextfile = "metrics.txt"\n',
        "{file}:12: audit.textfile: 'metrics.txt' must end with .prom: the node exporter reads no other file",
    ),
    "file missing": (
        '[databases.other]\nurl_file = "nowhere"\n',
        "{file}:12: databases.other.url_file: nowhere cannot be read: No such file or directory",
    ),
    "variable missing": (
        '[databases.other]\nurl_env = "UNSET_VARIABLE"\n',
        "{file}:12: databases.other.url_env: the environment has no UNSET_VARIABLE",
    ),
    "callback without URL": (
        "[groups.orders.callback]\n",
        "{file}:11: groups.orders.callback.url: must be an http or https URL",
    ),
    "callback with credentials": (
        '[groups.orders.callback]\nurl = "https://me:hidden@h/"\n',
        "{file}:12: groups.orders.callback.url: holds credentials; use token_file or token_env",
    ),
    "callback slower than its deadline": (
        '[groups.orders.callback]\nurl = "https://h/"\ntimeout_s = 10\n',
        "{file}:13: groups.orders.callback.timeout_s: must be below limits.check_deadline_s, which is 10",
    ),
    "certificate missing": (
        '[groups.orders.callback]\nurl = "https://h/"\nca_file = "ca.pem"\n',
        "{file}:13: groups.orders.callback.ca_file: there is no file ca.pem",
    ),
    "open to everybody": (
        '[http]\nhost = "0.0.0.0"\n',
        "{file}:12: http.host: 0.0.0.0 is no loopback address: set http.token_file or http.token_env",
    ),
    "no TOML": ("[log\n", "{file}: is no TOML: Expected ']' at the end of a table declaration (at line 11, column 5)"),
}
AT_THE_TOP = frozenset({"text for a switch", "value for a section", "value for a name"})


def text_of(name, addition):
    if addition.startswith("="):
        return addition[1:]
    if name in AT_THE_TOP:
        return f"\n{addition}{GOOD if name != 'value for a name' else GOOD.partition('[groups')[0]}"
    if name == "out of range":
        return GOOD.replace("[groups.orders]\n", "\n").replace('database = "shop"\n', addition)
    return f"{GOOD}\n{addition}" if addition.startswith("[") else f"{GOOD}{addition}"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_configuration_is_named_with_its_line(name, tmp_path):
    """Each mistake gives one message with the key's full name, the line, the mistake and the probable intention."""
    addition, message = WRONG[name]
    file = tmp_path / "txcore.toml"
    file.write_text(text_of(name, addition))
    with pytest.raises(ConfigFileError) as raised:
        load(file, environment={})
    assert [message.replace("{file}", str(file))] == [str(problem) for problem in raised.value.problems]


def test_there_are_twenty_wrong_configurations():
    """The list has at least the twenty configurations that the acceptance asks for, and no two messages are equal."""
    assert 20 <= len({message for _, message in WRONG.values()}) == len(WRONG)


def test_all_mistakes_are_reported_at_once(tmp_path):
    """One run reports every mistake."""
    file = tmp_path / "txcore.toml"
    file.write_text(f"{GOOD}policy.check_max = 0\nlisten = 3\n")
    with pytest.raises(ConfigFileError) as raised:
        load(file, environment={})
    assert ["groups.orders.policy.check_max", "groups.orders.listen"] == [each.key for each in raised.value.problems]
    assert str(raised.value) == "; ".join(map(str, raised.value.problems))


def test_the_good_configuration_is_one(tmp_path):
    """The base of the wrong configurations has no mistake itself; a group need not name the only backend."""
    file = tmp_path / "txcore.toml"
    file.write_text(GOOD)
    loaded = load(file, environment={})
    assert "main" == loaded.backend_of("orders")
    assert "sqlite:///broker.db" == loaded.secret("backends", "main", "url")
    assert 30.0 == loaded.config.groups["orders"].policy.interval_s


def test_secrets_come_from_files_beside_the_configuration_and_from_the_environment(tmp_path, monkeypatch):
    """Secrets are read whatever the working directory is, without white space around them, and are never shown."""
    (tmp_path / "secret").write_text(" s3cret \n")
    (tmp_path / "txcore.toml").write_text(
        GOOD.replace('url = "sqlite:///shop.db"', 'url_env = "SHOP"')
        + '[groups.bills.callback]\nurl = "http://h/"\nsecret_file = "secret"\ntoken_env = "TOKEN"\n'
    )
    monkeypatch.chdir("/")
    environment = {"SHOP": "postgresql://anna:hidden@db/shop?password=hidden2", "TOKEN": "t0ken"}
    loaded = load(tmp_path / "txcore.toml", environment=environment)
    assert "s3cret" == loaded.secret("groups", "bills", "callback", "secret")
    assert "t0ken" == loaded.secret("groups", "bills", "callback", "token")
    assert "postgresql://anna:hidden@db/shop?password=hidden2" == loaded.secret("databases", "shop", "url")
    assert "postgresql://anna:***@db/shop" == loaded.config.databases["shop"].url
    assert not any(word in repr(loaded) for word in ("hidden", "s3cret", "t0ken"))


def test_an_empty_secret_is_a_mistake(tmp_path):
    """An empty variable is refused, because an empty key would protect nothing."""
    (tmp_path / "txcore.toml").write_text(GOOD + '[http]\ntoken_env = "TOKEN"\n')
    with pytest.raises(ConfigFileError, match=r":11: http.token_env: the file or variable is empty"):
        load(tmp_path / "txcore.toml", environment={"TOKEN": " "})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("kafka://h:9092", "kafka://h:9092"),
        ("kafka://me:pass@h:9092?sasl_password=x", "kafka://me:***@h:9092"),
        ("nats://token@h", "nats://***@h"),
        ("kafka://me:pa?ss/wo#rd@h:9092", "kafka://me:***@h:9092"),
        ("sqlite:////a/b.db?x=1", "sqlite:////a/b.db"),
    ],
)
def test_urls_are_shown_without_passwords_and_options(url, shown):
    """A shown URL has neither password nor options, because either may be secret."""
    assert shown == masked(url)


def test_the_environment_and_flags_override_the_file(tmp_path):
    """Flags override the environment; names match without regard to case and dashes; texts stay texts."""
    file = tmp_path / "txcore.toml"
    file.write_text(GOOD + '[groups."big-orders"]\nlistener = "a:b"\n')
    loaded = load(
        file,
        environment={
            "TXCORE_HTTP__PORT": "9000",
            "TXCORE_GROUPS__BIG_ORDERS__POLICY__CHECK_MAX": "3",
            "TXCORE_GROUPS__ORDERS__POLICY__CHECK_MAX": "4",
            "TXCORE_CHECKER__MEMBER": "12",
            "TXCORE_REQUIRE": "kafka",
        },
        settings=["groups.orders.policy.check_max=5", 'groups."big-orders".partitions=8'],
    )
    assert (9000, "12") == (loaded.config.http.port, loaded.config.checker.member)
    assert {"orders": 5, "big-orders": 3} == {
        name: each.policy.check_max for name, each in loaded.config.groups.items()
    }
    assert 8 == loaded.config.groups["big-orders"].partitions


@pytest.mark.parametrize(
    ("environment", "settings", "message"),
    [
        (
            {"TXCORE_HTTP__PORTT": "1"},
            [],
            "environment TXCORE_HTTP__PORTT: http.portt: unknown key; did you mean 'port'?",
        ),
        (
            {"TXCORE_HTTP__PORT": "many"},
            [],
            "environment TXCORE_HTTP__PORT: http.port: must be a whole number, not 'many'",
        ),
        ({}, ["http.port=-1"], "--set http.port: http.port: must be a whole number >= 0, not -1"),
    ],
)
def test_a_mistake_is_reported_where_it_was_made(environment, settings, message, tmp_path):
    """The message names the environment variable or the flag, not a line of the file."""
    (tmp_path / "txcore.toml").write_text(GOOD)
    with pytest.raises(ConfigFileError) as raised:
        load(tmp_path / "txcore.toml", environment=environment, settings=settings)
    assert [message] == [str(problem) for problem in raised.value.problems]


def test_one_group_needs_no_file():
    """Flags or environment variables alone describe a group."""
    simple = Simple(broker="kafka://h", group="my-orders", database="sqlite:///shop.db")
    for loaded in (
        load(simple=simple, environment={}),
        load(
            environment={f"TXCORE_{key.upper()}": value for key, value in dataclasses.asdict(simple).items() if value}
        ),
    ):
        assert ["my-orders"] == list(loaded.config.groups)
        assert "kafka://h" == loaded.secret("backends", loaded.backend_of("my-orders"), "url")
        assert "sqlite:///shop.db" == loaded.secret("databases", loaded.config.groups["my-orders"].database, "url")


@pytest.mark.parametrize(
    ("file", "environment", "message"),
    [
        (None, {}, r"there is no txcore\.toml here: write one with `txcore config init`"),
        (
            "x.toml",
            {"TXCORE_BROKER": "kafka://h"},
            "environment TXCORE_BROKER describes a group without a file, but x",
        ),
        (None, {"TXCORE_BROKER": "kafka://h"}, "environment TXCORE_BROKER: name the producer group too"),
        (None, {"TXCORE_GROUP": "g", "TXCORE_BROKER": "kafka://h"}, "no source of answers"),
        (
            None,
            {"TXCORE_GROUP": "g", "TXCORE_DATABASE": "sqlite:///a.db"},
            "environment TXCORE_DATABASE and environment TXCORE_GROUP: name the broker too, with --broker",
        ),
        ("nowhere.toml", {}, r"nowhere\.toml: cannot be read: No such file"),
    ],
)
def test_missing_setting_without_a_file_is_named(file, environment, message, tmp_path, monkeypatch):
    """The error names the remedy."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load(file, environment=environment)


@pytest.mark.parametrize("setting", ["http.port", "=3", "a b=3", "[x]=3"])
def test_an_override_without_key_or_value_is_a_mistake(setting):
    """The error shows no value, because the value may be secret."""
    with pytest.raises(ConfigError, match=r"--set takes section\.key=value"):
        load(simple=Simple(group="g", broker="kafka://h", listener="a:b"), environment={}, settings=[setting])


def test_lines_are_found_however_toml_is_written():
    """A key's line is found in headers, dotted and quoted keys, inline tables, long values and arrays of tables."""
    text = '''# a = 1
a.b = [
  1,  # one
  2,
]
text = """
a.c = 3
[no.table]
"""
["quoted.name" . inner]
x = { y = { z = 1 } }

[[list]]
k = 1
[a.d]
'''
    found = {".".join(path): line for path, line in lines_of(text).items()}
    assert {
        "a": 2,
        "a.b": 2,
        "text": 6,
        "quoted.name": 10,
        "quoted.name.inner": 10,
        "quoted.name.inner.x": 11,
        "quoted.name.inner.x.y": 11,
        "quoted.name.inner.x.y.z": 11,
        "list": 13,
        "list.k": 14,
        "a.d": 15,
    } == found


def test_the_sample_has_no_mistake_and_names_every_key():
    """The commented keys are valid too, and show the defaults."""
    raw = tomllib.loads(sample())
    assert {"backends", "databases", "groups"} <= set(raw)
    lines = [line.removeprefix("# ") for line in sample().splitlines()]
    full = tomllib.loads("\n".join(line for line in lines if " = " in line.split("#")[0] or line.startswith("[")))
    config = msgspec.convert(full, Config)
    assert msgspec.structs.replace(Config().http, tokens={"observers": TokenSection()}) == config.http
    assert LimitsSection() == config.groups["orders"].limits
    assert set(msgspec.structs.asdict(config.groups["orders"].callback)) == set(full["groups"]["orders"]["callback"])


def test_the_sections_of_the_checkers_bounds_have_its_keys():
    """The section has each limit of the checker, with the same default; immunity is a key of policy."""
    known = {field.name for field in dataclasses.fields(Limits)} - {"immunity_min_s"}
    assert known == set(LimitsSection.__struct_fields__)
    same = known - {"idle_poll_s"}  # a checker process may poll less often than a test
    assert {key: getattr(Limits(), key) for key in same} == {key: getattr(LimitsSection(), key) for key in same}


def test_a_file_too_large_to_be_one_is_refused(tmp_path):
    """A file larger than the bound is refused; it is probably a database file."""
    (tmp_path / "txcore.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigFileError, match=r"is larger than"):
        load(tmp_path / "txcore.toml", environment={})
