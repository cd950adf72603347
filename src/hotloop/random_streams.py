"""NumPy's random generators as arrays, for checkpoints."""

import numpy as np


def generator_to_array(random: np.random.Generator) -> np.ndarray:
    """All of a PCG64 generator's state: two numbers of 128 bits, and half a draw that may be left over."""
    state = random.bit_generator.state
    halves = [half for name in ("state", "inc") for half in divmod(state["state"][name], 2**64)]
    return np.array([*halves, state["has_uint32"], state["uinteger"]], np.uint64)


def generator_from_array(array: np.ndarray) -> np.random.Generator:
    """Take back what `generator_to_array` gave."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(number) for number in array)
    random = np.random.Generator(np.random.PCG64())
    random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high * 2**64 + low, "inc": inc_high * 2**64 + inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return random
