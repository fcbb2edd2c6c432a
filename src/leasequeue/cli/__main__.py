"""`python -m leasequeue.cli`, for where the console script is not on PATH."""

from leasequeue.cli import main

# Processes of handlers import this again, under another name.
if __name__ == "__main__":
    main()
