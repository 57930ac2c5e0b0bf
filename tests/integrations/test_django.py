"""Django's block with messages; each test is its own program, because Django has one configuration per process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from sqlalchemy import make_url
from txcore_conformance import servers
from txcore_conformance.required import obtained

PROGRAM = """
    import json, os, sys
    from django.conf import settings
    settings.configure(
        SECRET_KEY="none",
        INSTALLED_APPS=["txcore.integrations.django"],
        DATABASES={"default": json.loads(os.environ["DATABASE"]),
                   "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": "other.db"}},
        USE_TZ=True,
        TXCORE={"broker": "sqlite:///broker.db", "group": "shop"},
    )
    import django
    django.setup()
    from django.core.management import call_command
    from django.db import connection, transaction
    import txcore
    from txcore.integrations.django import runtime
    from txcore.integrations.django.transactions import atomic
    from txcore_sqlite.consumer import read_topic
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (name TEXT)")

    def place(outgoing, name):
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [name])
        outgoing.publish(txcore.Message("orders", name.encode()))

    def show():
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM orders")
            print([row[0] for row in cursor.fetchall()], [m.body.decode() for m in read_topic("broker.db", "orders")])
"""


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL server."""
    made = obtained("postgresql", servers.postgresql)
    yield made
    made.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    """Return Django's description of the database."""
    if request.param == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}
    url = make_url(request.getfixturevalue("server").fresh_database())
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        "HOST": url.host or "",
        "PORT": url.port or "",
    }


@pytest.fixture
def run(tmp_path, database):
    """Run a program's body and return the lines that it prints."""
    environment = {**os.environ, "DATABASE": json.dumps(database)}

    def run(body):
        program = textwrap.dedent(PROGRAM) + textwrap.dedent(body)
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (0, "") == (done.returncode, done.stderr)
        return done.stdout.splitlines()

    return run


def test_a_block_commits_and_sends(run):
    """The message is published before the block's own on_commit functions run."""
    printed = run("""
        with atomic() as outgoing:
            place(outgoing, "tea")
            transaction.on_commit(lambda: print("on_commit", outgoing.result.state.name))
        show()
    """)
    assert ["on_commit ACCEPTED", "['tea'] ['tea']"] == printed


def test_an_error_in_the_block_undoes_both(run):
    """An error rolls back the rows and drops the messages."""
    printed = run("""
        try:
            with atomic() as outgoing:
                place(outgoing, "tea")
                1 / 0
        except ZeroDivisionError:
            show()
    """)
    assert ["[] []"] == printed


def test_a_block_without_messages_is_an_ordinary_one(run):
    """A block without messages writes neither fence row nor half."""
    printed = run("""
        with atomic() as outgoing, connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES ('silent')")
        show()
        print(outgoing.result, runtime.runtime().fence.stats().states)
    """)
    assert ["['silent'] []", "None {}"] == printed


def test_blocks_inside_are_savepoints(run):
    """The rows of a nested block that fails are rolled back, and the outer block continues."""
    printed = run("""
        with atomic() as outgoing:
            place(outgoing, "tea")
            try:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute("INSERT INTO orders VALUES ('gone')")
                    raise KeyError
            except KeyError:
                pass
        show()
    """)
    assert ["['tea'] ['tea']"] == printed


def test_the_block_must_be_the_outermost(run):
    """Inside another block its COMMIT would only release a savepoint, and the outer block could still roll back."""
    printed = run("""
        try:
            with transaction.atomic(), atomic() as outgoing:
                place(outgoing, "tea")
        except txcore.UsageError as error:
            print(error)
        show()
    """)
    assert "must be the outermost block" in printed[0]
    assert "[] []" == printed[1]


def test_a_view_under_atomic_requests_must_be_exempt(run):
    """The view's own transaction makes `atomic` refuse; `non_atomic_requests` lets it be the outermost block."""
    printed = run("""
        import types
        from django.db import connections
        from django.http import HttpResponse
        from django.test import Client, override_settings
        from django.urls import path

        def order(request):
            with atomic() as outgoing:
                place(outgoing, "tea")
            return HttpResponse("ordered")

        @transaction.non_atomic_requests
        def exempt(request):
            return order(request)

        urls = types.ModuleType("urls")
        urls.urlpatterns = [path("inside", order), path("exempt", exempt)]
        connections.settings["default"]["ATOMIC_REQUESTS"] = True
        with override_settings(ROOT_URLCONF=urls, ALLOWED_HOSTS=["testserver"]):
            client = Client()
            try:
                client.get("/inside")
            except txcore.UsageError as error:
                print(error)
            show()
            print(client.get("/exempt").content)
        show()
    """)
    assert "put @transaction.non_atomic_requests on the view" in printed[0]
    assert ["[] []", "b'ordered'", "['tea'] ['tea']"] == printed[1:]


def test_an_on_commit_function_that_fails_holds_nothing_back(run):
    """The messages are published before such a function runs."""
    printed = run("""
        try:
            with atomic() as outgoing:
                transaction.on_commit(lambda: 1 / 0)
                place(outgoing, "tea")
        except ZeroDivisionError:
            show()
    """)
    assert ["['tea'] ['tea']"] == printed


def test_another_database_than_the_fences_is_refused(run):
    """The fence's row must be in the database of the orders."""
    printed = run("""
        try:
            with atomic("other"):
                pass
        except txcore.UsageError as error:
            print(error)
    """)
    assert ["the fence is in database 'default', not 'other'"] == printed


@pytest.mark.parametrize(
    "database",
    [{"ENGINE": "django.db.backends.sqlite3", "NAME": "file:tests?mode=memory&cache=shared"}],
    ids=["memory"],
)
def test_a_database_in_memory_is_refused_with_the_setting_that_names_a_file(run):
    """Django's test database in memory cannot carry a fence: the block's error names the setting of Django."""
    printed = run("""
        try:
            with atomic() as outgoing:
                place(outgoing, "tea")
        except txcore.FenceMisuseError as error:
            print(error)
            show()
    """)
    assert printed[0].endswith('use a file, as by "TEST": {"NAME": "test.db"} in DATABASES')
    assert ["[] []"] == printed[1:]


def test_a_wrong_setting_is_one_clear_error(run):
    """The error names the setting and its required form."""
    printed = run("""
        for wrong in (None, {"broker": "sqlite:///broker.db"}, {"broker": "x", "group": "y", "brokre": "z"}):
            settings.TXCORE = wrong
            try:
                runtime.read_settings()
            except txcore.ConfigError as error:
                print(error.key, "must be" in str(error))
    """)
    assert ["TXCORE True"] * 3 == printed


def test_a_mistake_in_the_setting_is_found_by_the_system_check(run):
    """Each command of manage.py reports it before it starts."""
    printed = run("""
        from django.core.management import CommandError
        for wrong in (None, {"broker": "sqlite:///broker.db", "group": "shop", "database": "order"}):
            settings.TXCORE = wrong
            try:
                call_command("check")
            except CommandError as error:
                print(*(line for line in str(error).splitlines() if "txcore.E001" in line))
    """)
    assert [True, True] == ["settings.TXCORE" in line for line in printed]
    assert "'order', which DATABASES does not have" in printed[1]


def test_the_checker_says_in_one_sentence_why_it_cannot_start(run):
    """A broker that is down needs no traceback, and a checker makes no producer."""
    printed = run("""
        from django.core.management import CommandError
        settings.TXCORE["broker"] = "rabbitmq://guest:guest@127.0.0.1:1/?connect_timeout_s=0.2&control_timeout_s=0.2"
        try:
            call_command("txcore_checker", once=True)
        except CommandError as error:
            print(error)
    """)
    assert 1 == len(printed)
    assert "127.0.0.1:1" in printed[0]
    assert "producer" not in printed[0]


def test_the_checker_reports_that_the_tables_are_missing(run):
    """It starts nevertheless, as the tables may be made beside it."""
    printed = run("""
        call_command("migrate", "txcore", "zero", verbosity=0)
        call_command("txcore_checker", once=True)
    """)
    assert "1 unapplied migration(s)" in printed[1]
    assert ["committed 0, rolled back 0, pending 0"] == printed[-1:]


def test_a_test_may_change_the_setting(run):
    """After that, the next block uses the new broker."""
    printed = run("""
        from django.test import override_settings
        from txcore.testing import Kit
        with atomic() as outgoing:
            place(outgoing, "tea")
        with Kit() as kit, override_settings(TXCORE={"broker": kit.url, "group": "shop"}):
            with atomic() as outgoing:
                place(outgoing, "cake")
            kit.assert_published("orders", body=b"cake", count=1)
        with atomic() as outgoing:
            place(outgoing, "pie")
        show()
    """)
    assert ["['tea', 'cake', 'pie'] ['tea', 'pie']"] == printed


def test_a_testcase_never_commits_so_nothing_is_sent(run):
    """Its block is inside another one, and stores not even a half."""
    printed = run("""
        from unittest import TestResult, TestSuite
        from django.test import TestCase

        class Orders(TestCase):
            def test(self):
                with atomic() as outgoing:
                    place(outgoing, "tea")
                with connection.cursor() as cursor:
                    cursor.execute("SELECT name FROM orders")
                    print(cursor.fetchall())

        result = TestResult()
        TestSuite([Orders("test")]).run(result)
        print(result.errors, result.failures)
        show()
        call_command("txcore_checker", once=True)
    """)
    assert ["[('tea',)]", "[] []", "[] []", "committed 0, rolled back 0, pending 0"] == printed


def test_the_fences_own_connections_obey_options(run, database):
    """They use the certificates, the schema and the service that OPTIONS names for Django's connections."""
    if "sqlite" in database["ENGINE"]:
        pytest.skip("OPTIONS of PostgreSQL")
    printed = run("""
        connection.settings_dict["OPTIONS"] = {"options": "-c search_path=shop", "sslmode": "disable"}
        with runtime.engine_of("default").connect() as own:
            print(own.exec_driver_sql("SHOW search_path").scalar_one(), own.connection.dbapi_connection.info.dsn)
    """)
    assert printed[0].startswith("shop ")
    assert "sslmode=disable" in printed[0]


def test_the_inbox_takes_djangos_connection(run):
    """Its tables come from a migration; a message that comes again has no effect, one that failed has its effect."""
    printed = run("""
        from django.db import migrations, models
        from txcore.integrations.django.runtime import engine_of

        class Parcel(models.Model):
            number = models.IntegerField()

            class Meta:
                app_label = "shop"

        with connection.schema_editor() as editor:
            editor.create_model(Parcel)
            migrations.RunSQL(txcore.Inbox.ddl(connection.vendor)).database_forwards("shop", editor, None, None)

        inbox = txcore.Inbox(engine_of("default"))  # from txcore.integrations.django.runtime

        def receive(message):
            with transaction.atomic(), inbox.receive(connection.connection, message) as first:
                if first:
                    Parcel.objects.create(number=int(message.body))

        with atomic() as outgoing:
            outgoing.publish(txcore.Message("orders", b"7"))
        (message,) = read_topic("broker.db", "orders")
        try:
            with transaction.atomic():
                receive(message)
                raise LookupError
        except LookupError:
            print([parcel.number for parcel in Parcel.objects.all()])
        receive(message)
        receive(message)
        print([parcel.number for parcel in Parcel.objects.all()])
    """)
    assert ["[]", "[7]"] == printed


def test_a_refused_half_commits_nothing_and_leaves_the_connection_usable(run):
    """A broker that has no such topic refuses the half; the connection can still be used."""
    printed = run("""
        settings.TXCORE["broker"] = "sqlite:///other-broker.db?auto_create=false"
        try:
            with atomic() as outgoing:
                transaction.on_commit(lambda: print("on_commit"))
                place(outgoing, "tea")
        except txcore.MessageRejectedError as error:
            print(error.topic)
        show()
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES ('later')")
        show()
    """)
    assert ["orders", "[] []", "['later'] []"] == printed
