"""Bulk adds: rows and calls of tasks as items, each added once."""
