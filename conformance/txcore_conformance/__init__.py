"""The conformance kit: suite, oracle, simulator, model, crash and fault tools."""
