"""`python -m txcore.cli` is `txcore`."""

from __future__ import annotations

from txcore.cli import main

if __name__ == "__main__":
    main()
