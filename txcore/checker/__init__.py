"""The checker: owns partitions, reads their two logs, finds undecided halves, asks for their outcome, finishes them."""
