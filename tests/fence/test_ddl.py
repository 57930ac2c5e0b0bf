"""The printed statements, `create()` and a migration of Alembic make the same tables, on which a fence works."""

from __future__ import annotations

import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import MetaData, inspect, make_url, text

import txcore
from txcore.errors import ConfigError, FenceMisuseError, UsageError
from txcore.fence import FenceAnswer
from txcore.inbox import Inbox
from txcore.sqlfence import SqlFence


def catalogue(engine, table, made_as):
    """Return what the database knows of the tables of *table*, with *made_as* in place of its name."""
    seen, found = inspect(engine), {}
    for suffix in ("", "_meta", "_msg", "_slot", "_later"):
        if not seen.has_table(name := table + suffix):
            continue
        columns = [{**each, "type": repr(each["type"])} for each in seen.get_columns(name)]
        found[suffix] = (
            columns,
            seen.get_pk_constraint(name),
            sorted(seen.get_indexes(name), key=str),
            sorted(seen.get_unique_constraints(name), key=str),
            sorted(seen.get_check_constraints(name), key=str),
        )
    return repr(found).replace(table, made_as)


def meta_row(engine, table):
    with engine.connect() as connection:
        return connection.execute(text(f"SELECT * FROM {table}_meta")).all()


def piped(world, *options):
    """Pipe the printed statements into the database's own client."""
    command = [sys.executable, "-m", "txcore.cli", "fence", "ddl", "--dialect", world.kind, *options]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    url = make_url(world.url)
    client = {
        "postgresql": ["psql", "-v", "ON_ERROR_STOP=1", url.set(drivername="postgresql").render_as_string(False)],
        "mariadb": ["mariadb", f"-h{url.host}", f"-P{url.port}", f"-u{url.username}", url.database or ""],
        "sqlite": ["sqlite3", "-bail", url.database or ""],
    }[world.kind]
    if world.kind == "mariadb" and url.password:
        client.insert(1, f"-p{url.password}")
    ran = subprocess.run(client, input=printed, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return printed


def works(world, fence):
    """Whether a fence on the tables commits a transaction and rolls another one back."""
    kept, dropped = world.new_id(), world.new_id()
    fence.commit(fence.begin(None, kept, "orders"))
    answers = fence.check([kept, dropped], "orders")
    return [FenceAnswer.COMMIT, FenceAnswer.ROLLBACK] == [answers[each].answer for each in (kept, dropped)]


def test_printed_statements_make_the_tables_of_create(world):
    """The databases' own clients run the printed statements; `create` finds nothing to change after them."""
    table = f"printed_{world.number}"
    printed = piped(world, "--table", table)
    assert max(map(len, printed.splitlines())) <= 80
    fence = SqlFence(world.engine, table=table)
    before = meta_row(world.engine, table)
    assert catalogue(world.engine, world.fence_table, "t") == catalogue(world.engine, table, "t")
    assert works(world, fence)
    fence.create()
    piped(world, "--table", table)
    assert before == meta_row(world.engine, table)
    assert len(fence.identity().current) == 16
    assert fence.identity().current != world.fence.identity().current
    assert not fence.identity().is_copy
    assert (fence.identity().server != "") is (world.kind == "postgresql")


def test_printed_inbox_is_the_one_of_create(world):
    """The same holds of an inbox."""
    made, table = Inbox(world.engine, table=f"made_{world.number}"), f"in_{world.number}"
    made.create()
    piped(world, "--inbox", table)
    assert catalogue(world.engine, made.table, "t") == catalogue(world.engine, table, "t")
    inbox = Inbox(world.engine, table=table)
    inbox.create()
    headers = {"txcore-id": f"{txcore.ids.id_text(world.new_id())}:0", "txcore-group": "orders"}
    for expected in (True, False):
        with world.engine.begin() as connection, inbox.receive(connection, headers) as is_first:
            assert expected is is_first
    assert 1 == len(meta_row(world.engine, table))


def test_longest_table_name_makes_a_fence(world):
    """No table or index beside it has a longer name than the databases take; a name with one more is refused."""
    table = f"longest_{world.number}_".ljust(56, "x")
    fence = SqlFence(world.engine, table=table)
    fence.create()
    assert works(world, fence)
    with pytest.raises(ConfigError, match="at most 56"):
        SqlFence(world.engine, table=f"{table}x")


def migrating(connection, tables):
    options = {
        "compare_server_default": connection.dialect.name == "postgresql",
        "include_name": lambda name, kind, parents: kind != "table" or name in tables,
    }
    return MigrationContext.configure(connection, opts=options)


def test_alembic_sees_no_difference_after_create(world):
    """Autogenerate compares types too."""
    inbox = Inbox(world.engine, table=f"made_{world.number}")
    inbox.create()
    for target in (
        SqlFence.metadata(world.kind, table=world.fence_table),
        Inbox.metadata(world.kind, table=inbox.table),
    ):
        with world.engine.connect() as connection:
            assert [] == compare_metadata(migrating(connection, target.tables), target)


def test_generated_migration_and_ddl_make_a_fence(world):
    """A generated migration makes the tables, and the statements of `ddl` after it the meta row."""
    table = f"generated_{world.number}"
    target = SqlFence.metadata(world.kind, table=table)
    with world.engine.begin() as connection:
        context = migrating(connection, target.tables)
        run_migration(context, target)
    fence = SqlFence(world.engine, table=table)
    with pytest.raises(UsageError, match=r"has no row; run `txcore fence create`, or what `txcore fence ddl`"):
        fence.begin(None, world.new_id(), "orders")
    with world.engine.begin() as connection:
        for statement in SqlFence.ddl(world.kind, table=table):
            Operations(migrating(connection, target.tables)).execute(statement)
    assert works(world, fence)
    assert catalogue(world.engine, world.fence_table, "t") == catalogue(world.engine, table, "t")


def run_migration(context, target):
    """Run the text that Alembic would write into a file."""
    script = produce_migrations(context, target)
    code = render_python_code(script.upgrade_ops, migration_context=context)
    names: dict = {"op": Operations(context)}
    exec("import sqlalchemy as sa\nfrom sqlalchemy.dialects import mysql, postgresql, sqlite", names)
    exec("if True:\n    " + code, names)


def test_alembic_upgrades_schema_version_1(world):
    """A generated migration adds the columns; the statements after it give identity and version, and keep the row."""
    meta = f"{world.fence_table}_meta"
    with world.engine.begin() as connection:
        for column in ("identity", "server", "adopted"):
            connection.execute(text(f"ALTER TABLE {meta} DROP COLUMN {column}"))
        connection.execute(text(f"UPDATE {meta} SET schema_version = 1"))
    world.engine.dispose()
    target = SqlFence.metadata(world.kind, table=world.fence_table)
    with world.engine.begin() as connection:
        context = migrating(connection, target.tables)
        run_migration(context, target)
        for statement in SqlFence.ddl(world.kind, table=world.fence_table):
            Operations(context).execute(statement)
    assert 2 == meta_row(world.engine, world.fence_table)[0].schema_version
    fence = world.new_fence()
    identity = fence.identity()
    assert 16 == len(identity.current)
    fence.create()
    assert identity == fence.identity()
    assert works(world, fence)


def test_a_name_or_dialect_that_does_not_fit_is_refused():
    """The statements need no connection, and are refused like the fence."""
    with pytest.raises(FenceMisuseError, match="oracle"):
        SqlFence.ddl("oracle")
    with pytest.raises(ConfigError, match="plain table name"):
        Inbox.ddl("postgresql", table="no name")
    assert isinstance(SqlFence.metadata("postgresql", table="shop.tx"), MetaData)
    assert "CREATE TABLE IF NOT EXISTS shop.tx (" in SqlFence.ddl("postgresql", table="shop.tx")[0]
