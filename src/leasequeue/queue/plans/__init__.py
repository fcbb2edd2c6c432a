"""Plans of flow runs: how they are made, checked and stored, read and steered, and their steps.

`tasks/chains.py` and `flow` call the one builder. What the function of a stage sees, and how its run ends,
are in `worker/stage_context.py` and `worker/stages.py`, as they need the outcomes of runs. This is a folder
of the queue's room, and no room beside it: `AsyncWorkQueue` needs it, and it needs the engine.
"""
