"""A real server for tests, notebooks and single machines, which ends with this process.

`program` finds a server program, `guardian` ends its process with this one, `server` is the public part.
"""

from leasequeue.embedded.program import ServerProgram, find_server
from leasequeue.embedded.server import EmbeddedServer, RunningServer, open_server

__all__ = ["EmbeddedServer", "RunningServer", "ServerProgram", "find_server", "open_server"]
