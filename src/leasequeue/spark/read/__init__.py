"""What Spark reads: snapshots, lease streams, events, backlogs, and the results of tasks."""
