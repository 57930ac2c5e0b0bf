"""The conformance suite: one file per behaviour; run it with `pytest --pyargs txcore_conformance.suite --harness …`."""
