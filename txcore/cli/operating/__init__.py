"""The operator's commands: pending, parked, show, resume, commit, rollback, topics, fence, top; `docs/operating.md`.

`place` finds the group, `txcore.operator.selection` the transactions; `formatting` and `to_json` make texts and JSON;
each command has a module. A command is refused here before anything is written, and again by the partition's owner,
the checker that executes it.
"""
