"""How much faster would a run be if one of its stages cost nothing? Replace the stage and measure.

python examples/what_if.py
"""

import numpy as np

from hotloop.engines.protocol import Learned
from hotloop.experience import METRICS
from hotloop.trial import trial

SPEC = {"env": {"id": "CartPole-v1", "num_envs": 8}, "replay": {"start": 1_000}, "updates_per_step": 0.5}


def no_learning(update):
    """Stands in for the engine's `update`: the state stays as it is."""

    def learned_nothing(state, items, *rest):
        return Learned(state, np.zeros(items.r_t.shape, np.float32), np.zeros(len(METRICS), np.float32))

    return learned_nothing


class DrawsOnce:
    """Stands in for the replay: stores as it does, draws once, and gives the same batches ever after."""

    def __init__(self, replay):
        self._replay, self._batches = replay, None

    def __getattr__(self, name):
        return getattr(self._replay, name)

    def sample(self, *args, **more):
        """The first batches."""
        if self._batches is None:
            self._batches = self._replay.sample(*args, **more)
        return self._batches


def main(seconds: float = 5.0) -> None:
    """Measure one after the other."""
    as_it_is = trial(SPEC, seconds=seconds).env_steps_per_s
    print(f"as it is          {as_it_is:9,.0f} env steps/s")
    for what, replace in (
        ("without learning", {"update": no_learning}),
        ("drawing once", {"replay": DrawsOnce}),
        ("without metrics", {"log": False}),
    ):
        speed = trial(SPEC, replace=replace, seconds=seconds).env_steps_per_s
        print(f"{what:17} {speed:9,.0f} env steps/s, {speed / as_it_is:.2f}x")


if __name__ == "__main__":
    main()
