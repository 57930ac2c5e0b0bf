"""`python -m benchmarks.rivals`."""

from benchmarks.rivals.command import main

main()
