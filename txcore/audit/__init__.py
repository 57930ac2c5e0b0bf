"""The arithmetic of proof: invariants of single transactions, bounds of checkpoints, verdicts over tallies."""
