"""How actors and a learner in processes of their own exchange experience and weights.

`protocol.py` is what both sides may rely on; `exchange.py` is where it begins on one machine, in shared memory.
"""
