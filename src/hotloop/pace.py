"""How many blocks a chunk has: about half a second's, and never past what must happen at an env step.

A chunk may cost something however short it is: several seeds on one device have their states, replays included, copied
at its beginning and end. So chunks of two lengths tell what a block takes and what the chunk itself does, and a chunk
is long enough for the latter to be a tenth of it.
"""

from hotloop.spec import Spec

SECONDS_PER_CHUNK = 0.5
"""Short enough for Ctrl-C, long enough not to be seen in the speed."""
TIMES_ITS_OWN_COST, LONGEST_CHUNK = 10, 20.0
"""How many times what it costs by itself a chunk takes, and the most seconds for that."""


class Pace:
    """Begins with one block, then two, and finds the pace of the machine."""

    def __init__(self, spec: Spec) -> None:
        self.logs_exactly = spec.log.exact
        self._spec, self._blocks = spec, 1
        self._before: tuple[int, float] | None = None  # blocks and seconds of the last chunk of another length
        self._own_cost = 0.0  # seconds

    def blocks(self, env_steps: int) -> int:
        """Blocks of the chunk that begins at this env step."""
        return min(self._blocks, self._to_next_event(env_steps))

    def note(self, blocks: int, seconds: float) -> None:
        """A chunk of so many blocks took so long."""
        is_first = self._before is None
        if self._before is not None:
            self._compare(self._before, (blocks, seconds))
        self._before = (blocks, seconds)
        chunk = max(SECONDS_PER_CHUNK, min(LONGEST_CHUNK, TIMES_ITS_OWN_COST * self._own_cost))
        own_cost = min(self._own_cost, seconds / 2)
        wanted = int(blocks * min(chunk - self._own_cost, LONGEST_CHUNK) / (seconds - own_cost))
        self._blocks = max(2 if is_first else 1, min(wanted, 8 * self._blocks))

    def _compare(self, one: tuple[int, float], other: tuple[int, float]) -> None:
        """Learn what a chunk costs by itself; from lengths that hardly differ one would learn what noise is."""
        fewer, more = sorted([one, other])
        if more[0] < 2 * fewer[0] or more[1] <= fewer[1]:
            return
        per_block = (more[1] - fewer[1]) / (more[0] - fewer[0])
        self._own_cost = max(0.0, fewer[1] - per_block * fewer[0])

    def _to_next_event(self, env_steps: int) -> int:
        spec = self._spec
        log_every = spec.log.every if self.logs_exactly else 0
        periods = [p for p in (log_every, spec.evaluation.every, spec.log.checkpoint_every) if p]
        event = min(spec.stop.steps, *((env_steps // period + 1) * period for period in periods))
        return max(1, -(-(event - env_steps) // spec.block_plan.env_steps))


def crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies between two env steps; there is none of 0."""
    return bool(every) and now // every > before // every
