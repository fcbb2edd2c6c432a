"""`leasehold demo`: real files, real processes, real signals, and a check of what came out.

`files` finds the work and `describe` does it, in the processes of `worker`; `events` is what these tell.
`crew` starts them, `scenes` kills and stops two of them, `check` looks at the output, `report` says it all;
`play` is the plot and `command` the way in from the terminal.
"""
