"""The configuration file `txcore.toml`: its keys, and reading it with every mistake reported.

Shared by the checker, the operator's commands and the audit; it knows no broker, no database and no web library.
"""

from __future__ import annotations

from txcore.config.audit import AuditBackendSection, AuditGroupSection, AuditSection, RuleSection
from txcore.config.loading import Loaded, load
from txcore.config.problems import ConfigFileError, Problem
from txcore.config.schema import (
    BackendSection,
    CallbackSection,
    CheckerSection,
    Config,
    DatabaseSection,
    GroupSection,
    HttpSection,
    LimitsSection,
    LogSection,
    PolicySection,
)
from txcore.config.sources import FILE_NAME

__all__ = [
    "FILE_NAME",
    "AuditBackendSection",
    "AuditGroupSection",
    "AuditSection",
    "BackendSection",
    "CallbackSection",
    "CheckerSection",
    "Config",
    "ConfigFileError",
    "DatabaseSection",
    "GroupSection",
    "HttpSection",
    "LimitsSection",
    "Loaded",
    "LogSection",
    "PolicySection",
    "Problem",
    "RuleSection",
    "load",
]
