"""Backends are found by URL scheme, one at a time, and every error names the mistake."""

from __future__ import annotations

import pytest

import txcore
from txcore import registry
from txcore.errors import BackendConflictError, BackendNotInstalledError, ConfigError, UnknownSchemeError

OPENS = """
from txcore.hookspecs import hookimpl
from txcore.plugin import BackendPlugin

class Opened:
    append_halves = capabilities = claim = close = ensure_group = load_checkpoint = 1
    mark = ping = poll = read = release = 2

    def __init__(self, url):
        self.url = url

@hookimpl
def txcore_backend():
    return BackendPlugin(scheme={scheme!r}, parse_url=str, backend=Opened)
"""
NEEDS_DRIVER = OPENS.format(scheme="redis").replace(
    "parse_url", 'driver="redis-py", driver_module="no_driver", parse_url'
)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a distribution with one backend, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(distribution, scheme, source=None, module=None):
        module = module or f"{distribution}_{tmp_path.name}".replace("-", "_")  # modules outlive a test
        if source is not None or not (tmp_path / f"{module}.py").exists():
            (tmp_path / f"{module}.py").write_text(OPENS.format(scheme=scheme) if source is None else source)
        metadata = tmp_path / f"{distribution.replace('-', '_')}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text(f"[txcore]\n{scheme} = {module}\n")

    return make


def test_a_third_partys_backend_opens_by_its_scheme(install):
    """A third party's backend opens by its scheme, with the settings that it makes of the URL."""
    install("acme-redis", "acme")
    assert "acme://h?a=1&b=" == txcore.connect("acme://h?a=1&b=").url


def test_a_backend_that_lacks_members_is_refused_with_their_names(install):
    """A class with a member that is not written yet is a ConfigError, not an AttributeError of its first caller."""
    install("acme-redis", "acme", OPENS.format(scheme="acme").replace("ping = poll = ", ""))
    with pytest.raises(ConfigError, match=r"backend of the plugin 'acme' lacks ping, poll; see txcore\.port\.Backend"):
        txcore.connect("acme://h")


def test_an_url_without_settings_is_named(install):
    """A `parse_url` that forgets its return is a ConfigError, not an AttributeError of the backend's class."""
    install("acme-redis", "acme", OPENS.format(scheme="acme").replace("parse_url=str", "parse_url=lambda url: None"))
    with pytest.raises(ConfigError, match="parse_url of the plugin 'acme' returned no settings"):
        txcore.connect("acme://h")


def test_an_unknown_scheme_lists_the_known_ones(install):
    """The error about an unknown scheme lists the known ones, also those of other distributions."""
    install("acme-redis", "acme")
    with pytest.raises(UnknownSchemeError, match="unknown backend 'kafak'") as caught:
        txcore.connect("kafak://h")
    assert {"acme", "memory", "sqlite"} <= set(caught.value.known)
    assert "acme" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (OPENS.format(scheme="other"), "not one for other://"),
        ("", "no such function with @txcore.hookimpl"),
        (OPENS.format(scheme="acme").replace("@hookimpl", ""), "no such function with @txcore.hookimpl"),
        (OPENS.format(scheme="acme").replace("return", ""), "not None"),
        (OPENS.format(scheme="acme").replace("BackendPlugin(", "dict("), "{"),
    ],
    ids=["another scheme", "no hook", "no mark", "no return", "no plugin"],
)
def test_a_module_without_the_plugin_of_its_scheme_is_named(install, source, found):
    """A module whose hook is missing, or does not return the scheme's plugin, is a ConfigError that names the hook."""
    install("acme-redis", "acme", source)
    with pytest.raises(
        ConfigError, match=r"txcore_backend\(\) of acme_redis.* must return the BackendPlugin"
    ) as caught:
        txcore.connect("acme://h")
    assert found in str(caught.value)
    assert "txcore_backend" in {each.scheme: each for each in registry.installed_backends()}["acme"].missing


@pytest.mark.parametrize("named", ["json:Backend", "no_such:Backend", "no_such.module:Backend", "json.no:Backend"])
def test_a_part_that_is_missing_is_named_at_connect(install, named):
    """A plugin that names a class that is not there is a ConfigError with the part's name."""
    install("acme-redis", "acme", OPENS.format(scheme="acme").replace("backend=Opened", f"backend={named!r}"))
    with pytest.raises(ConfigError, match=f"backend of the plugin 'acme' is '{named}', which is not there") as caught:
        txcore.connect("acme://h")
    assert caught.value.key == "backend"


def test_a_missing_driver_of_a_third_party_is_installed_by_its_name(install):
    """The error contains the command that installs the driver: txcore has no extra for it."""
    install("acme-redis", "redis", NEEDS_DRIVER)
    with pytest.raises(BackendNotInstalledError) as caught:
        txcore.connect("redis://h")
    assert 'pip install "redis-py"' in str(caught.value)


def test_a_plugins_own_import_error_stays_visible(install):
    """A bug of the plugin is not taken for a missing driver."""
    install("acme-redis", "acme", "import a_typo_of_mine")
    with pytest.raises(ModuleNotFoundError, match="a_typo_of_mine"):
        txcore.connect("acme://h")


def test_a_broken_backend_does_not_disturb_another_one(install):
    """A broken backend disturbs no other, because only the requested one is loaded."""
    install("acme-redis", "acme", "raise RuntimeError('broken')")
    txcore.connect("memory://").close().result()


def test_two_distributions_with_one_scheme_are_both_named(install):
    """The error names both distributions of a scheme, because one of them must be uninstalled."""
    install("acme-redis", "acme")
    install("zeta-redis", "acme")
    with pytest.raises(BackendConflictError) as caught:
        txcore.connect("acme://h")
    assert ("acme-redis", "zeta-redis") == caught.value.distributions
    assert "acme-redis and zeta-redis" in str(caught.value)


@pytest.mark.parametrize("url", ["broker.db", "//user:secret@host", "", "/secret@x"])
def test_a_url_without_a_scheme_is_refused_without_its_password(url):
    """The error about a URL without a scheme shows the form of a URL, and no password."""
    with pytest.raises(ConfigError, match="scheme://") as caught:
        txcore.connect(url)
    assert "secret" not in str(caught.value)


def test_an_option_given_twice_is_refused():
    """An option that is given twice is refused, because it is not clear which value would apply."""
    with pytest.raises(ConfigError, match="'profile' appears twice") as caught:
        txcore.connect("memory://x?profile=strong&profile=kafka-like")
    assert "profile" == caught.value.key


def test_installed_backends_are_listed_with_what_they_lack(install):
    """Installed backends are listed with distribution, version, and the command that installs a missing driver."""
    install("acme-redis", "redis", NEEDS_DRIVER)
    lines = {each.scheme: each for each in registry.installed_backends()}
    assert ("acme-redis", "1.2") == (lines["redis"].distribution, lines["redis"].version)
    assert 'pip install "redis-py"' in lines["redis"].missing
    assert "" == lines["memory"].missing
    assert sorted(lines) == list(lines)
