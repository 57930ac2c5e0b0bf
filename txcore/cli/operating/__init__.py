"""What operators type: pending, parked, show, resume, commit, rollback, topics, fence, top. See `docs/operating.md`.

`place` finds the group, `choosing` the transactions, `words` and `records` put them into words, tables and JSON; each
command has a module. What a command may do is decided here before anything is written, and again by the partition's
owner, who executes it.
"""
