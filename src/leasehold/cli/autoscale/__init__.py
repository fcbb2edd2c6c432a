"""The command `leasehold autoscale`."""
