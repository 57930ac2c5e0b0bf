"""`txcore demo`: an order service whose processes are killed again and again, and the proof that nothing was lost.

`run` is one run, `supervisor` starts, kills and restarts the processes of `processes`, `verdict` reads everything back
and judges it, `show` prints it. This module imports nothing, so that the demo's processes start faster.
"""
