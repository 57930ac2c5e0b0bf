"""Warnings about brokers that run in another version than requested, shown in test reports and CI."""

from __future__ import annotations

import os
import warnings as python_warnings
from typing import Final

WARNINGS_VARIABLE: Final = "TXCORE_BROKER_WARNINGS"
_texts: list[str] = []


class BrokerFallbackWarning(UserWarning):
    """A broker runs in another version than requested."""


def warn(text: str) -> None:
    """Issue a Python warning, once per text, and keep it for `warnings`."""
    if text not in _texts:
        _texts.append(text)
        python_warnings.warn(text, BrokerFallbackWarning, stacklevel=2)


def warnings() -> list[str]:
    """Return the warnings of this program and of the program that started its brokers."""
    given = [text for text in os.environ.get(WARNINGS_VARIABLE, "").splitlines() if text]
    return list(dict.fromkeys([*given, *_texts]))
