"""Makes the table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """See the module."""

    initial = True
    operations = [
        migrations.CreateModel("Order", [("id", models.BigAutoField(primary_key=True)), ("item", models.CharField(max_length=200))]),
    ]
