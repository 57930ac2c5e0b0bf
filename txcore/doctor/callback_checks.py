"""The doctor's check of the listeners' callbacks: nothing is sent to them."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from txcore.backends.exposure import encryption_finding
from txcore.errors import UsageError
from txcore.findings import Check, Examination, Finding


def callback_examination(urls: tuple[str, ...]) -> Examination[tuple[str, ...]]:
    """Return the checks of *urls*.

    Raises:
        UsageError: one is no http or https URL.
    """
    for url in urls:
        if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
            raise UsageError("--callback is the http or https URL of a listener's callback")
    return Examination(CHECKS, urls, lambda: None)


def _encryption(urls: tuple[str, ...]) -> Finding:
    plain = [urlsplit(url).hostname or "" for url in urls if urlsplit(url).scheme == "http"]
    return encryption_finding(
        plain, is_encrypted=not plain, sent="messages and answers", change="https:// in the listener's url"
    )


CHECKS: Final = (
    Check("callback.encryption", "no callback sends messages unprotected to another machine", _encryption),
)
