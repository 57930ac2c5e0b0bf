"""The filter of a list, as the query of a page or of the API gives it: topic, key, age and code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Self
from urllib.parse import urlencode

from txcore.errors import UsageError
from txcore.operator import formatting
from txcore.operator.selection import Filter
from txcore.sidecar.metrics import PARK_CODES

TEXT_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Given:
    """The texts of a filter; "" for a condition that is not set."""

    topic: str = ""
    key: str = ""
    older_than: str = ""
    code: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Return the filter in a query, or in the fields of a form."""
        return cls(**{name: query.get(name, "").strip()[:TEXT_MAX] for name in cls.__slots__})

    def __bool__(self) -> bool:
        return any(asdict(self).values())

    @property
    def query(self) -> str:
        """The conditions that are set, as a query."""
        return urlencode({name: text for name, text in asdict(self).items() if text})

    @property
    def words(self) -> str:
        """The conditions that are set, as text."""
        return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in asdict(self).items() if text)

    def chosen(self) -> Filter:
        """Return the filter.

        Raises:
            UsageError: the age is no duration, or there is no such code.
        """
        if self.code and self.code not in PARK_CODES:
            raise UsageError(f"the code is one of {', '.join(PARK_CODES)}, not {self.code!r}")
        older_than_s = formatting.duration_s(self.older_than, "older than") if self.older_than else None
        return Filter(older_than_s, self.topic, self.code, key=self.key)
