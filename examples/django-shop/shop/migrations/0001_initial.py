"""Makes the table of orders."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """See the module."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            "Order", [("id", models.BigAutoField(primary_key=True)), ("item", models.CharField(max_length=200))]
        ),
    ]
