"""Refinement as a property: every way of reading a partition's two logs ends with the state that both logs give.

`whole` is the oracle, `history` writes random valid logs, `folding` plays them on the fold alone, and `owning` on real
owners around it. `mutants` removes rules, and `replay` judges the logs that a real broker holds.
"""
