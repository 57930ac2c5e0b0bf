"""Makes the fence's two tables; not inside Django's transaction, as the fence has connections of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

import txcore
from txcore.integrations.django.runtime import engine_of, read_settings


def create(_apps: Any, schema_editor: Any) -> None:
    """Make the tables in the database that the setting names, if that one is being migrated."""
    alias = schema_editor.connection.alias
    if alias == read_settings().database:
        txcore.SqlFence(engine_of(alias)).create()


class Migration(migrations.Migration):
    """See the module."""

    atomic = False
    operations: ClassVar[list[Any]] = [migrations.RunPython(create, migrations.RunPython.noop)]
