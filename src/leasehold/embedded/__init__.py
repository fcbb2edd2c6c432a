"""A real server for tests, notebooks and single machines: started here, gone with us.

`program` finds a server program, `guardian` ties its process to ours, `server` is the face of it all.
"""

from leasehold.embedded.program import ServerProgram, find_server
from leasehold.embedded.server import EmbeddedServer, Server, open_server

__all__ = ["EmbeddedServer", "Server", "ServerProgram", "find_server", "open_server"]
