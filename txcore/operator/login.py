"""The login name under which a person runs a command; it is kept with what the command did."""

from __future__ import annotations

import os
import pwd


def login_name() -> str:
    """Return the login name of this process, or its number; under sudo, the caller's login name."""
    sudo = os.environ.get("SUDO_USER", "")
    if sudo and os.getuid() == 0:
        return sudo
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
