"""hotloop at the settings of `dqn_cartpole`: the spec, and one train call of it by an engine as a run makes it.

What differs from the original: of the four newest transitions each batch of a call gets one, there the first gets all;
and the learning rate falls every 4,000 env steps, there every 1,000 train calls, the first of which is at frame 36.
"""

from typing import NamedTuple

import numpy as np

from hotloop.bench.qloss_original import (
    BATCHES,
    CAPACITY,
    CLIP,
    DISCOUNT,
    HIDDEN,
    LEARNING_RATE,
    POLYAK,
    RATE_EVERY,
    RATE_FACTOR,
    STEPS_ON_EACH,
    STEPS_PER_CALL,
    Setting,
)
from hotloop.bench.qloss_replay import Batch
from hotloop.engines.protocol import Engine
from hotloop.experience import Items
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec

START, TRAIN_EVERY, TARGET_EVERY = 32, 4, 32
"""In frames: a train call at every multiple of 4 beyond 32, a move of the target net at every multiple of 32."""
EPSILON_START, EPSILON_END, EPSILON_FRAMES = 1.0, 0.1, 1_000


class EngineCase(NamedTuple):
    """An engine, and how PyTorch runs where it is that."""

    engine: str
    mode: str = ""


def spec_of(setting: Setting, case: EngineCase, frames: int) -> Spec:
    """The same training as a spec: blocks of 4 env steps, 4 batches and 8 gradient steps on each."""
    return load_spec(
        {},
        {
            "engine": case.engine,
            **({"torch.mode": case.mode} if case.mode else {}),
            "pipeline": "sync",
            # Vector envs of Gymnasium's own take a step to reset, and a block would then have fewer frames than 4.
            "env": {"id": setting.env_id, "num_envs": 1, "vectorization": "sync"},
            "updates_per_step": STEPS_PER_CALL / TRAIN_EVERY,
            "learn_every": TRAIN_EVERY,
            "discount": DISCOUNT,
            "network.torso": {"kind": "mlp", "hidden": [HIDDEN], "activation": "selu"},
            "replay": {
                "capacity": CAPACITY,
                "start": START + 1,  # the first block that ends beyond it
                "batch_size": setting.batch_size,
                "updates_per_batch": STEPS_ON_EACH,
                "newest_in_batch": True,
            },
            "target": {"rule": "target", "every": TARGET_EVERY, "tau": POLYAK},
            "loss.kind": "mse",
            "optimizer": {
                "kind": "adam",
                "learning_rate": {
                    "kind": "step",
                    "start": LEARNING_RATE,
                    "rate": RATE_FACTOR,
                    "every": RATE_EVERY * TRAIN_EVERY,
                },
                "clip": CLIP,
            },
            "exploration.epsilon": {
                "kind": "linear",
                "start": EPSILON_START,
                "end": EPSILON_END,
                "steps": EPSILON_FRAMES,
            },
            "evaluation.every": 0,
            "stop.steps": frames,
        },
    )


class EngineLearner:
    """A run's learner with a filled replay; `train_call` draws 4 batches and takes 8 gradient steps on each."""

    def __init__(self, setting: Setting, case: EngineCase, transitions: int) -> None:
        from hotloop.assembly import Assembly
        from hotloop.pipelines.host_run import HostRun
        from hotloop.trial import begun

        run = begun(Assembly(spec_of(setting, case, frames=transitions)))
        assert isinstance(run, HostRun)
        self.run = run
        while run.env_steps < transitions:
            run.collect()

    @property
    def engine(self) -> Engine:
        """What learns."""
        return self.run.engine

    def train_call(self) -> None:
        """Draw, learn, make it count."""
        learner = self.run.learner
        learner.take(learner.learn(learner.draw(self.run.env_steps)))

    def close(self) -> None:
        """Close its env."""
        self.run.close()


def learned_by(engine: Engine, calls: list[list[Batch]]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """An engine's first weights, and those after a train call on each set of batches; the target moves after each."""
    state = engine.init(0)
    start = engine.to_named(engine.weights(state))
    for batches in calls:
        assert len(batches) == BATCHES
        state = engine.update(state, _items(batches), None, LEARNING_RATE, 1, None).state
    return start, engine.to_named(engine.weights(state))


def _items(batches: list[Batch]) -> Items:
    """Batches as an engine takes them: arrays (K, B, …), γ and termination in one number."""
    fields = zip(*(batch.fields for batch in batches), strict=True)
    s_tm1, a_tm1, r_t, s_t, terminated_t = (np.stack([each.numpy() for each in field]) for field in fields)
    discount_t = (DISCOUNT * (1.0 - terminated_t)).astype(np.float32)
    return Items(s_tm1, a_tm1.astype(np.int32), r_t, discount_t, s_t)
