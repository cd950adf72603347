"""Which functions and lines of the env of a run take its time: one more such env, stepped by itself."""

import numpy as np

from hotloop.assembly import Assembly
from hotloop.pipeline_trial import act_at_random
from hotloop.profiling.figures import EnvProfile
from hotloop.profiling.functions import profile_steps


def look_into_env(assembly: Assembly, seconds: float) -> EnvProfile | None:
    """Of an env on the host, made as the run makes its own; None where that fails: the run is none the worse for it."""
    spec = assembly.spec
    try:
        envs = assembly.open_one_env()
        try:
            if spec.env.action_mask:
                envs.mask_actions(spec.env.id)
            envs.reset(spec.seed)
            actions = np.random.default_rng(spec.seed)
            return profile_steps(spec.env.id, lambda: act_at_random(envs, actions), seconds)
        finally:
            envs.close()
    except Exception:  # whatever the user's own code raises, or another profiler that is at work
        return None
