"""Backends are found by URL scheme, one at a time, and every error names the mistake."""

from __future__ import annotations

import pytest

import txcore
from txcore import registry
from txcore.errors import BackendConflictError, BackendNotInstalledError, ConfigError, UnknownSchemeError

OPENS = """
from txcore.hookspecs import hookimpl

@hookimpl
def txcore_open_backend(url, options):
    return (url, dict(options)) if url.startswith({scheme!r} + ":") else None
"""
NEEDS_DRIVER = """
from txcore.errors import BackendNotInstalledError
from txcore.hookspecs import hookimpl

def check_driver():
    try:
        import no_such_driver
    except ImportError as error:
        raise BackendNotInstalledError("redis", "no_such_driver", "redis") from error

@hookimpl
def txcore_open_backend(url, options):
    check_driver()
"""


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
    """A third party's backend opens by its scheme and gets the options of its URL."""
    install("acme-redis", "acme")
    assert ("acme://h?a=1&b=", {"a": "1", "b": ""}) == txcore.connect("acme://h?a=1&b=")


def test_an_unknown_scheme_lists_the_known_ones(install):
    """The error about an unknown scheme lists the known ones, also those of other distributions."""
    install("acme-redis", "acme")
    with pytest.raises(UnknownSchemeError, match="unknown backend 'kafak'") as caught:
        txcore.connect("kafak://h")
    assert {"acme", "memory", "sqlite"} <= set(caught.value.known)
    assert "acme" in str(caught.value)


def test_a_backend_that_does_not_take_its_url_is_unknown(install):
    """A backend whose hook returns None for its URL is unknown."""
    install("acme-redis", "acme", OPENS.format(scheme="other"))
    with pytest.raises(UnknownSchemeError):
        txcore.connect("acme://h")


def test_a_missing_driver_names_its_extra(install):
    """The error about a missing driver contains the command that installs its extra."""
    install("acme-redis", "redis", NEEDS_DRIVER)
    with pytest.raises(BackendNotInstalledError) as caught:
        txcore.connect("redis://h")
    assert 'pip install "txcore[redis]"' in str(caught.value)
    assert isinstance(caught.value.__cause__, ImportError)


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
    assert 'pip install "txcore[redis]"' in lines["redis"].missing
    assert "" == lines["memory"].missing
    assert sorted(lines) == list(lines)
