"""The worker: runs handlers on the items of queues, through deploys, crashes and slow code."""
