"""`txcore demo`: an order service whose processes are killed again and again, and the proof that nothing was lost.

`command` is the command line, `supervisor` starts, kills and restarts the processes of `processes`, `verdict` reads
everything back and judges it, `show` says it. Nothing is imported here: the demo's processes start faster for it.
"""
