"""Learning through the host pipelines: a small pixel env in a minute's work, and goals found in hindsight."""

import gymnasium as gym
import numpy as np
import pytest

import hotloop


class Catch(gym.Env):
    """A ball falls down eight rows; a paddle below moves left or right, or stays. Seen as two stacked frames."""

    observation_space = gym.spaces.Box(0, 255, (2, 8, 8), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ball = [0, int(self.np_random.integers(8))]
        self.paddle = 3
        self.frames = np.repeat(self._frame()[None], 2, axis=0)
        return self.frames, {}

    def step(self, action):
        self.paddle = int(np.clip(self.paddle + action - 1, 0, 7))
        self.ball[0] += 1
        over = self.ball[0] == 7
        caught = over and abs(self.paddle - self.ball[1]) <= 1
        self.frames = np.stack([self.frames[1], self._frame()])
        return self.frames, (1.0 if caught else -1.0) if over else 0.0, over, False, {"caught": float(caught)}

    def _frame(self):
        frame = np.zeros((8, 8), np.uint8)
        frame[tuple(self.ball)] = 255
        frame[7, self.paddle] = 255
        return frame


gym.register("hotloop-tests/Catch-v0", entry_point=Catch)

CATCH = {
    "env": {"id": "hotloop-tests/Catch-v0", "num_envs": 8, "info": ["caught"]},
    "updates_per_step": 0.25,
    "network": {
        "torso": {"kind": "cnn", "layout": "CHW", "channels": [16], "kernels": [3], "strides": [1], "hidden": [64]}
    },
    "target": {"rule": "double", "every": 256},
    "optimizer": {"learning_rate": 1e-3},
    "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 8000}},
    "replay": {"capacity": 20_000, "start": 500, "batch_size": 32, "stacked_frames": 2, "n_step": 3},
    "evaluation": {"every": 4000, "episodes": 64},
    "stop": {"steps": 24_000, "return_at_least": 0.8},
    "log": {"every": 2000, "exact": True},
}


@pytest.mark.heavy
@pytest.mark.parametrize("pipeline", ["sync", "concurrent"])
def test_a_small_pixel_env_is_learned_from_stacked_frames(pipeline, tmp_path):
    run = hotloop.train(CATCH, out=tmp_path / "run", pipeline=pipeline)
    assert "solved" in run.stopped, run.return_mean
    from hotloop.runs import metrics

    rows = metrics.read(run.path / "metrics.jsonl")
    caught = [row["caught_mean"] for row in rows if row["kind"] == "train"]
    assert caught[-1] > caught[0], "the env's own figure rises with it"
    assert [row for row in rows if row["kind"] == "eval"][-1]["caught_mean"] >= 0.9


@pytest.mark.heavy
@pytest.mark.parametrize(("hindsight", "finds"), [({"goals": "future"}, True), (None, False)])
def test_goals_that_chance_never_finds_are_learned_in_hindsight_only(hindsight, finds, tmp_path):
    run = hotloop.train(
        {
            "env": {"id": "hotloop.envs.bit_flip:hotloop/BitFlip-v0", "num_envs": 8, "options": {"bits": 12}},
            "updates_per_step": 0.125,
            "discount": 0.98,
            "network": {"torso": {"hidden": [128]}},
            "target": {"rule": "double", "every": 500},
            "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 10_000}},
            "replay": {"capacity": 100_000, "start": 1000, "batch_size": 64, "hindsight": hindsight},
            "evaluation": {"every": 10_000, "episodes": 50},
            "stop": {"steps": 30_000},
        },
        out=tmp_path / "run",
    )
    # -12: the goal is never reached; about -5: it is, by the shortest way.
    assert run.return_mean > -7 if finds else run.return_mean < -10
