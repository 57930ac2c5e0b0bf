"""The verdicts of the audit, as predicates over tallies of plain numbers."""
