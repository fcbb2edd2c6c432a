"""`leasehold demo`: real files, real worker processes, real signals, and a check of the output.

`command` reads the options and `run` runs the demo: `files` are its items, `workers` its processes, `faults`
kills one of them and stops one, `check` merges their output and compares it.
"""
