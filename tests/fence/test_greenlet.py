"""SQLAlchemy without greenlet, which it does not install by itself."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_an_async_engine_without_greenlet_names_the_extra():
    """SQLAlchemy refuses its first import without greenlet and allows the next: such an engine is the right class."""
    program = """
        import sys
        sys.modules["greenlet"] = None
        import txcore
        txcore.SqlFence
        try:
            import sqlalchemy.ext.asyncio as asynchronous
        except ImportError:
            import sqlalchemy.ext.asyncio as asynchronous
        try:
            txcore.AsyncSqlFence(asynchronous.create_async_engine("sqlite+aiosqlite://"))
        except txcore.ConfigError as error:
            print(error)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert "AsyncSqlFence needs greenlet" in ran.stdout
    assert "pip install 'txcore[asyncio]'" in ran.stdout
