"""The configuration that makes this package an application of Django."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed

from txcore.errors import ConfigError
from txcore.integrations.django.runtime import engine_of, forget, read_settings


class TxcoreConfig(AppConfig):
    """Provides the migration, the command and a system check."""

    name = "txcore.integrations.django"
    label = "txcore"

    def ready(self) -> None:
        """Check the setting with each command of manage.py, and notice a test that changes it."""
        checks.register(check_setting)
        setting_changed.connect(forget)


def check_setting(**_: Any) -> list[checks.CheckMessage]:
    """Report a mistake in settings.TXCORE."""
    try:
        engine_of(read_settings().database)
    except ConfigError as error:
        return [checks.Error(str(error), id="txcore.E001")]
    return []
