"""How many blocks a chunk has: about half a second's, and never past what must happen at an env step."""

from hotloop.spec import Spec

SECONDS_PER_CHUNK = 0.5
"""Short enough for Ctrl-C, long enough not to be seen in the speed."""


class Pace:
    """Begins with one block and finds the pace of the machine."""

    def __init__(self, spec: Spec) -> None:
        self.logs_exactly = spec.log.exact
        self._spec, self._blocks = spec, 1

    def blocks(self, env_steps: int) -> int:
        """Blocks of the chunk that begins at this env step."""
        return min(self._blocks, self._to_next_event(env_steps))

    def note(self, blocks: int, seconds: float) -> None:
        """A chunk of so many blocks took so long."""
        self._blocks = max(1, min(int(blocks * SECONDS_PER_CHUNK / seconds), 8 * self._blocks))

    def _to_next_event(self, env_steps: int) -> int:
        spec = self._spec
        log_every = spec.log.every if self.logs_exactly else 0
        periods = [p for p in (log_every, spec.evaluation.every, spec.log.checkpoint_every) if p]
        event = min(spec.stop.steps, *((env_steps // period + 1) * period for period in periods))
        return max(1, -(-(event - env_steps) // spec.block_plan.env_steps))


def crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies between two env steps; there is none of 0."""
    return bool(every) and now // every > before // every
