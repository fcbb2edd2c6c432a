"""`python -m leasehold.cli`, for where the console script is not on PATH."""

from leasehold.cli import main

main()
