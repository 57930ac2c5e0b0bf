"""What a run did not get in the version it asked for, said where people and CI see it."""

from __future__ import annotations

import os
import warnings as python_warnings
from typing import Final

WARNINGS_VARIABLE: Final = "TXCORE_BROKER_WARNINGS"
_texts: list[str] = []


class BrokerFallbackWarning(UserWarning):
    """A broker runs in another version than was asked for."""


def warn(text: str) -> None:
    """Give a Python warning, once a text, and keep it for `warnings`."""
    if text not in _texts:
        _texts.append(text)
        python_warnings.warn(text, BrokerFallbackWarning, stacklevel=2)


def warnings() -> list[str]:
    """Return what this program and the one that started the brokers for it had to say."""
    given = [text for text in os.environ.get(WARNINGS_VARIABLE, "").splitlines() if text]
    return list(dict.fromkeys([*given, *_texts]))
