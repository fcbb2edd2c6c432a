"""Run one part of a library's program: `python -m benchmarks.rivals.programs LIBRARY PART TASK`."""

import importlib
import sys

from benchmarks.rivals.programs import protocol

if __name__ == "__main__":
    _, library, part, task = sys.argv
    program = importlib.import_module(f"benchmarks.rivals.programs.{library.replace('-', '_')}")
    protocol.main(program, part, task)
