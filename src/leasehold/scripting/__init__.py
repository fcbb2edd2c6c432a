"""The only room that knows the client library: scripts, connections, and the gathering of calls."""
