"""`python -m benchmarks`."""

from benchmarks.micro import main

main()
