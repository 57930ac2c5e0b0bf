"""The name that is kept with what a person's command did."""

from __future__ import annotations

import os

from txcore.operator import login


def test_login_name_under_sudo_is_the_caller_s(monkeypatch):
    """Root under sudo acts for the person that called it; a name in the environment of another user proves nothing."""
    monkeypatch.setenv("SUDO_USER", "anna")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert "anna" == login.login_name()
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert "uid 4000000" == login.login_name()


def test_login_name_is_the_process_s():
    """Without sudo it is the name of the process's user."""
    assert login.pwd.getpwuid(os.getuid()).pw_name == login.login_name()
