"""`leasequeue top`: queues, workers, runs and dead letters, live in the terminal."""
