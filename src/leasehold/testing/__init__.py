"""What users' tests need: a server, queues and workers as fixtures, time moved by hand, faults on demand."""
