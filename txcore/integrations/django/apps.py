"""The configuration that makes this package an application of Django."""

from __future__ import annotations

from django.apps import AppConfig


class TxcoreConfig(AppConfig):
    """Provides the migration and the command."""

    name = "txcore.integrations.django"
    label = "txcore"
