"""Draining with handlers on the executors, whose output is written exactly once."""
