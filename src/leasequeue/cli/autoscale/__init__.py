"""The command `leasequeue autoscale`."""
