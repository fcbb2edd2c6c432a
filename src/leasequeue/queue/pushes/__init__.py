"""What the server pushes to a session: deliveries, results, progress, events, and the end of a wait."""
