"""TensorBoard reads what was written, before and after a resume."""

import numpy as np
import pytest
from hotloop_process import checkpoints, metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TAGS = {
    "rollout/ep_rew_mean": ("train", "ep_return_mean"),
    "rollout/ep_len_mean": ("train", "ep_length_mean"),
    "rollout/exploration_rate": ("train", "epsilon"),
    "time/fps": ("train", "env_steps_per_s"),
    "train/loss": ("train", "loss"),
    "train/n_updates": ("train", "updates"),
    "eval/mean_reward": ("eval", "return_mean"),
}


def _shown(run, tag):
    """Steps and values of a tag, as TensorBoard shows them."""
    accumulator = EventAccumulator(str(run))
    accumulator.Reload()
    events = accumulator.Scalars(tag)
    return [event.step for event in events], [event.value for event in events]


def _written(run, tag):
    kind, name = TAGS[tag]
    rows = [row for row in metrics(run, kind) if row[name] is not None]
    return [row["env_steps"] for row in rows], [np.float32(row[name]) for row in rows]


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_shows_the_numbers_of_the_metrics(finished_once, tag):
    steps, values = _shown(finished_once, tag)
    assert len(steps) >= 3
    assert (steps, values) == _written(finished_once, tag)


@pytest.mark.heavy
def test_a_lost_and_resumed_run_shows_every_step_once(hotloop, finished):
    killed = {"HOTLOOP_FAILPOINT": "checkpoint.begin=kill"}
    assert hotloop("resume", "run", "--steps", "1400", env=killed).code == -9
    assert checkpoints(finished)[-1] == 1000
    assert metrics(finished, "train")[-1]["env_steps"] == 1200, "shown, and lost with its session"
    assert hotloop("resume", "run", "--steps", "1400").code == 0
    assert len(list(finished.glob("events.out.tfevents.*"))) == 3
    for tag in TAGS:
        steps, values = _shown(finished, tag)
        assert steps == sorted(set(steps)), tag
        assert steps[-1] == 1400
        assert (steps, values) == _written(finished, tag), tag
