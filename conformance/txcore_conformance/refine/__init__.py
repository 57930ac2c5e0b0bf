"""Refinement as a property: whatever is read of a partition's two logs, and however, ends as the whole logs say.

`whole` is the oracle, `history` writes random valid logs, `folding` plays them on the fold alone, `owning` on real
owners around it, `mutants` takes rules away, and `replay` judges the logs that a real broker holds.
"""
