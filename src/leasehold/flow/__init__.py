"""Flows: stages of work that follow each other, with fan-out and fan-in, built on the tasks of a queue."""
