"""The project's settings, as few as there can be."""

import os

SECRET_KEY = "an example has no secrets"
INSTALLED_APPS = ["txcore.integrations.django", "shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", "shop.db"),
        "TEST": {"NAME": "test.db"},  # in memory, where Django's tests are by default, SQLite has no fence
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TXCORE = {"broker": os.environ.get("BROKER", "sqlite:///broker.db"), "group": "shop"}
