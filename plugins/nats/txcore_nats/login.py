"""The login of a URL, as nats-py's arguments; files are read at each connection, so that they can be renewed."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from txcore.errors import ConfigError
from txcore_nats.options import Options

_JWT: Final = re.compile(r"^-+BEGIN NATS USER JWT-+\s+\S+\s", re.MULTILINE)
_SEED: Final = re.compile(r"^-+BEGIN USER NKEY SEED-+\s+(\S+)\s", re.MULTILINE)


def login(options: Options) -> dict[str, Any]:
    """Return nats-py's arguments for credentials, the user's own replies and TLS.

    Raises:
        ConfigError: a file for credentials or TLS cannot be used.
    """
    given: dict[str, Any] = {"inbox_prefix": options.inbox}
    if options.user:
        given.update(user=options.user, password=options.password)
    elif options.token:
        given.update(token=options.token)
    elif options.creds:
        given.update(user_credentials=_credentials_file(options.creds))
    elif options.nkey_seed:
        given.update(nkeys_seed=_seed_file(options.nkey_seed))
    context = options.tls_context()
    if context is not None:
        given.update(tls=context, tls_handshake_first=options.tls_first)
        if options.tls_server_name:
            given.update(tls_hostname=options.tls_server_name)
    return given


def _credentials_file(path: str) -> str:
    text = _text(path, "creds")
    seed = _SEED.search(text)
    if not _JWT.search(text) or not seed or not _is_seed(seed[1]):
        raise ConfigError(f"creds={path!r} holds no user's JWT with the seed of its nkey", key="creds")
    return path


def _seed_file(path: str) -> str:
    if not _is_seed(_text(path, "nkey_seed").strip()):
        raise ConfigError(f"nkey_seed={path!r} holds no seed of an nkey", key="nkey_seed")
    return path


def _text(path: str, key: str) -> str:
    if find_spec("nkeys") is None:
        raise ConfigError(f'{key} needs nkeys; install it with: pip install "txcore[nats]"', key=key)
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{key}={path!r} cannot be used: {reason}", key=key) from None


def _is_seed(text: str) -> bool:
    try:
        importlib.import_module("nkeys").from_seed(bytearray(text, "ascii")).wipe()
    except Exception:  # noqa: BLE001 - nkeys raises errors of its own, of base64 and of nacl, some with the seed
        return False
    return True
