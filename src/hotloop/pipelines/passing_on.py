"""What goes from this process to one that it starts, functions and classes of the user's own included: by cloudpickle.

The one place of the package that unpickles. The bytes come from the parent, through a file without a name that only
these two have open: never from a run, a spec or the network.
"""

import cloudpickle


def packed(thing: object) -> bytes:
    """As bytes; raises whatever an object raises that cannot be pickled."""
    data: bytes = cloudpickle.dumps(thing)
    return data


def unpacked(data: bytes) -> object:
    """What a parent has packed for this process."""
    thing: object = cloudpickle.loads(data)
    return thing
