"""The descriptor of a backend: its parts are checked when it is made, and imported when they are called."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from txcore.errors import BackendNotInstalledError, ConfigError
from txcore.findings import Request
from txcore.plugin import BackendPlugin
from txcore.registry import known_schemes, plugin_for

PLUGIN = BackendPlugin(scheme="acme", parse_url=len, backend=lambda size: ("backend", size))
PARTS = ("backend", "examination", "objects", "permissions", "consumer")


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        *((each, None, "is missing") for each in ("scheme", "parse_url", "backend")),
        ("scheme", "", "is ''"),
        ("parse_url", "module:name", "is 'module:name'"),
        *((each, "module", "is 'module'") for each in PARTS),
        *((each, 7, "is 7") for each in ("options", "guarantees", "driver", "driver_module", *PARTS)),
        ("guarantees", ["all"], "is ['all']"),
    ],
)
def test_a_part_that_is_missing_or_of_the_wrong_kind_is_named(key, value, found):
    """A plugin without a part that it needs, or with one of another kind, is a ConfigError with the part's name."""
    with pytest.raises(ConfigError) as raised:
        replace(PLUGIN, **{key: value})
    assert raised.value.key == key
    assert f"{key} of the plugin " in str(raised.value)
    assert f" {found}; it must be " in str(raised.value)


def test_parts_get_the_settings_of_the_url_and_may_be_absent():
    """Each part gets the settings that the plugin makes of the URL; a part that a plugin does not have returns None."""
    assert PLUGIN.connect("acme://") == ("backend", 7)
    calls = (
        lambda plugin: plugin.examine("acme://", "request"),
        lambda plugin: plugin.describe_group("acme://", "group", 3),
        lambda plugin: plugin.permissions_of("acme://", "access"),
        lambda plugin: plugin.open_consumer("acme://", "topic", "group"),
    )
    assert [call(PLUGIN) for call in calls] == [None, None, None, None]
    whole = replace(PLUGIN, **dict.fromkeys(PARTS[1:], lambda *given: given))
    assert [call(whole) for call in calls] == [(7, "request"), (7, "group", 3), (7, "access"), (7, "topic", "group")]


def test_a_part_is_imported_when_it_is_called():
    """A part may be named by its module and name; one that is not there, or no function, is named."""
    assert replace(PLUGIN, backend="builtins:range").connect("acme://") == range(7)
    for named in ("builtins:nothing", "math:pi"):
        with pytest.raises(ConfigError, match=f"backend of the plugin 'acme' is '{named}', which is not there"):
            replace(PLUGIN, backend=named).connect("acme://")


def test_a_missing_driver_is_found_before_it_is_needed():
    """The error about a missing driver says what to install; options are parsed before, so a typo comes first."""
    plugin = replace(PLUGIN, driver="acme-py", driver_module="no_driver_of_acme")
    for call in (plugin.check_driver, lambda: plugin.connect("acme://")):
        with pytest.raises(BackendNotInstalledError, match='needs acme-py; install it with: pip install "acme-py"'):
            call()
    with pytest.raises(BackendNotInstalledError, match=r'pip install "txcore\[acme\]"'):
        replace(plugin, extra="acme").check_driver()
    with pytest.raises(ConfigError, match="no option 'nope'"):
        replace(plugin_for("kafka://"), driver_module="no_driver").connect("kafka://h?nope=1")


@pytest.mark.parametrize("scheme", known_schemes())
def test_every_part_of_the_plugins_of_this_tree_is_there(scheme):
    """Each part that a plugin names by module and name is there, and the plugin describes its options."""
    plugin = plugin_for(f"{scheme}://")
    for part in (getattr(plugin, name) for name in PARTS):
        if isinstance(part, str):
            module, _, name = part.partition(":")
            assert callable(getattr(importlib.import_module(module), name))
    assert fields(plugin.options)
    assert plugin.guarantees


@pytest.mark.parametrize("scheme", known_schemes())
def test_a_plugin_is_described_without_its_driver(scheme):
    """Loading a plugin imports no driver, and only the call that needs it says which extra is missing."""
    program = f"""
import sys
for name in ("confluent_kafka", "pika", "nats"):
    sys.modules[name] = None
from txcore.registry import plugin_for
plugin = plugin_for("{scheme}://")
assert plugin.guarantees and plugin.options
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_memory_broker_has_no_live_parts():
    """`memory://` has neither an examination nor a consumer, because other processes cannot reach it."""
    assert plugin_for("memory://").examine("memory://x", Request("g")) is None
