"""`python -m leasequeue.scripting --dump FOLDER`: write the composed scripts into a folder."""

import sys

from leasequeue.scripting.catalogue import main

if __name__ == "__main__":
    main(sys.argv[1:])
