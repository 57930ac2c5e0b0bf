"""The example's own tests, as `manage.py test` runs them, and its admin, which the example itself does not install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOP = Path(__file__).parents[2] / "examples" / "django-shop"
WITH_ADMIN = """
from shop.settings import *
INSTALLED_APPS = [*INSTALLED_APPS, *(f"django.contrib.{app}" for app in
                  ("admin", "auth", "contenttypes", "sessions", "messages"))]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
              "django.contrib.auth.middleware.AuthenticationMiddleware",
              "django.contrib.messages.middleware.MessageMiddleware"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
              "context_processors": [f"django.{name}" for name in ("template.context_processors.request",
              "contrib.auth.context_processors.auth", "contrib.messages.context_processors.messages")]}}]
DATABASES["default"]["ATOMIC_REQUESTS"] = True
ROOT_URLCONF = "with_admin_urls"
"""
URLS = """
from django.contrib import admin
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
"""
ADMIN_TESTS = """
from django.contrib.auth.models import User
from django.db import models
from shop.models import Order
from shop.tests import OrderTests as Shop

class AdminTests(Shop):
    def setUp(self):
        super().setUp()
        self.client.force_login(User.objects.create_superuser("anna"))

    def test_what_the_admin_saves_is_announced(self):
        self.client.post("/admin/shop/order/add/", {"item": "tea"})
        number = Order.objects.get().pk
        self.kit.assert_published("orders.created", body=b"%d" % number, count=1)
        self.client.post(f"/admin/shop/order/{number}/change/", {"item": "cake"})
        assert ["cake"] == [order.item for order in Order.objects.all()]
        self.kit.assert_published("orders.changed", body=b"%d" % number, count=1)

    def test_what_fails_after_the_save_is_not(self):
        self.client.raise_request_exception = False
        def fail(*_, **__):
            raise LookupError
        models.signals.post_save.connect(fail, sender=Order)
        try:
            assert 500 == self.client.post("/admin/shop/order/add/", {"item": "tea"}).status_code
        finally:
            models.signals.post_save.disconnect(fail, sender=Order)
        assert not Order.objects.exists()
        self.kit.assert_not_published("orders.created")
"""


def manage(folder, *arguments, **environment):
    """Run manage.py in a folder, and return its output."""
    done = subprocess.run(
        [sys.executable, str(SHOP / "manage.py"), *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [(), ("--parallel", "2")], ids=["alone", "parallel"])
def test_the_shops_tests_leave_nothing_behind(tmp_path, arguments):
    """They use Django's test database, and the kit's broker in memory."""
    code, output = manage(tmp_path, "test", "shop", *arguments)
    assert (0, True) == (code, "Ran 2 tests" in output), output
    assert [] == list(tmp_path.iterdir())


def test_the_admin_announces_what_it_saves(tmp_path):
    """It does so under ATOMIC_REQUESTS, whose transaction would be the outermost one."""
    (tmp_path / "with_admin.py").write_text(WITH_ADMIN)
    (tmp_path / "with_admin_urls.py").write_text(URLS)
    (tmp_path / "admin_tests.py").write_text(ADMIN_TESTS)
    places = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, output = manage(
        tmp_path,
        "test",
        "admin_tests",
        DJANGO_SETTINGS_MODULE="with_admin",
        PYTHONPATH=places,
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert (0, True) == (code, "Ran 6 tests" in output), output
