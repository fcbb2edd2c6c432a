"""`leasequeue demo`: real files, real worker processes, real signals, and a check of the output.

The items are `files`; `workers` process them, `faults` kills one and stops one, `check` compares the output.
"""
