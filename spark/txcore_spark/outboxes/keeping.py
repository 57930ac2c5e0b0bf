"""The SQL of a trigger that keeps a copy of each row, for outboxes whose rows are deleted when they are sent."""

from __future__ import annotations

from sqlalchemy import create_engine, inspect
from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError

from txcore.errors import BackendUnavailableError, ConfigError
from txcore.outbox.foreign_layouts import check_table


def keeping_sql(url: str, table: str, kept: str) -> str:
    """Return the SQL, for people to read and to run, that copies each new row of *table* into *kept*.

    Nothing is changed in the database.

    Raises:
        ConfigError: a name would need quoting, or there is no such table.
        BackendUnavailableError: the database does not answer.
    """
    check_table(table)
    check_table(kept, "kept")
    engine = create_engine(url)
    try:
        columns = [str(each["name"]) for each in inspect(engine).get_columns(table)]
    except NoSuchTableError as error:
        raise ConfigError(f"there is no table {table!r}", key="table") from error
    except SQLAlchemyError as error:
        raise BackendUnavailableError(f"the database does not answer: {type(error).__name__}") from error
    finally:
        engine.dispose()
    names = ", ".join(map(engine.dialect.identifier_preparer.quote, columns))
    values = ", ".join(f"NEW.{engine.dialect.identifier_preparer.quote(each)}" for each in columns)
    insert = f"INSERT INTO {kept} ({names}) VALUES ({values})"
    trigger = f"CREATE TRIGGER {kept}_copy AFTER INSERT ON {table} FOR EACH ROW"
    dialect = engine.dialect.name
    if dialect == "postgresql":
        made = f"CREATE TABLE {kept} (LIKE {table});"
        function = f"CREATE FUNCTION {kept}_copy() RETURNS trigger LANGUAGE plpgsql AS $$"
        body = f"BEGIN\n  {insert};\n  RETURN NULL;\nEND $$;"
        return f"{made}\n{function}\n{body}\n{trigger} EXECUTE FUNCTION {kept}_copy();"
    if dialect == "sqlite":
        return f"CREATE TABLE {kept} AS SELECT * FROM {table} WHERE 0;\n{trigger}\nBEGIN\n  {insert};\nEND;"
    return f"CREATE TABLE {kept} LIKE {table};\n{trigger}\n{insert};"
