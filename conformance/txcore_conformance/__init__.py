"""txcore's conformance suite, oracle, simulator, model and crash kit; usable by third parties on their own backends."""
