"""Queues whose items are spread over several queues, for the throughput and memory of a cluster."""
