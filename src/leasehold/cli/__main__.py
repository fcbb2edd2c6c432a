"""`python -m leasehold.cli`, for where the console script is not on PATH."""

from leasehold.cli import main

# Processes of handlers import this again, under another name.
if __name__ == "__main__":
    main()
