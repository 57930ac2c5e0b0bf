"""What makes this package an application of Django's."""

from __future__ import annotations

from django.apps import AppConfig


class TxcoreConfig(AppConfig):
    """Brings the migration and the command."""

    name = "txcore.integrations.django"
    label = "txcore"
