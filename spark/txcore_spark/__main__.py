"""`python -m txcore_spark` and `spark-submit …/txcore_spark/__main__.py`."""

from __future__ import annotations

import sys

from txcore_spark.command import main

sys.exit(main())
