"""Lets these tests find the plugin's package from a source tree in which it is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
