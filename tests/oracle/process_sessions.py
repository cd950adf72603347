"""Sessions of pipeline processes for tests: begun, and closed with all their processes."""

import contextlib

import numpy as np

from hotloop.assembly import Assembly, Own
from hotloop.spec.reading import load_spec, parse_spec

SMALL = {
    "updates_per_step": 0.25,
    "env": {"id": "CartPole-v1", "num_envs": 4},
    "network": {"torso": {"hidden": [16]}},
    "target": {"every": 48},
    "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 400}},
    "replay": {"capacity": 1024, "start": 64, "batch_size": 16},
    "evaluation": {"every": 0},
    "stop": {"steps": 100_000},
}


def spec_of(overrides):
    return load_spec(parse_spec(SMALL), overrides)


@contextlib.contextmanager
def begun(overrides, env=None, restored=None):
    """A session that is closed, with all its processes."""
    with Assembly(spec_of(overrides), Own(env=env)) as assembly:
        session = assembly.session(assembly.spec.members)
        session.compile()
        session.said = session.begin() if restored is None else session.restore(restored)
        yield session


def assert_real(items):
    """Every transition is a step of one episode of one env of one process, with the reward of that step."""
    before, after = (part.reshape(-1, 4) for part in (items.s_tm1, items.s_t))
    assert np.array_equal(before[:, :3], after[:, :3])
    assert np.array_equal(before[:, 3] + 1, after[:, 3])
    expected = 100.0 * before[:, 2] + after[:, 3] + 0.1 * items.a_tm1.reshape(-1)
    assert np.allclose(items.r_t.reshape(-1), expected)
