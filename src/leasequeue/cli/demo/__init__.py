"""`leasequeue demo`: real files, real worker processes, real signals, and a check of the output.

The items are `files`; `workers` process them; `run` kills one, stops one, and checks the output.
"""
