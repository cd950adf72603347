"""`hotloop train --env ID` on real Gymnasium envs: trains, evaluates, records, resumes, and refuses in one line."""

import pytest
from hotloop_process import checkpoints, manifest, metrics

SMALL = (
    *(
        "--set",
        "env.num_envs=4",
        "--set",
        "network.torso.hidden=[16]",
        "--set",
        "log={every: 200, checkpoint_every: 400}",
    ),
    *("--set", "replay={capacity: 512, start: 64, batch_size: 16}", "--set", "evaluation={every: 400, episodes: 4}"),
)

BROKEN_ENV = """
import gymnasium, numpy

class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def __init__(self, raises=False):
        self.raises = raises

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        if self.raises and self.steps == 40:
            raise RuntimeError("out of ammunition")
        reward = float("nan") if self.steps == 120 and not self.raises else 1.0
        return numpy.zeros(2, numpy.float32), reward, self.steps % 10 == 0, False, {}

gymnasium.register("Broken-v0", entry_point=Broken)
"""


def test_a_gymnasium_env_is_trained_on_evaluated_recorded_and_resumed(hotloop, tmp_path):
    ran = hotloop("train", "--env", "CartPole-v1", *SMALL, "--steps", "1000", "--out", "run", "--json")
    assert "pipeline: sync (the env is a Gymnasium env, stepped on the host)" in ran.err
    result, run = ran.json, tmp_path / "run"
    assert 1000 <= result["env_steps"] < 1004
    assert result["updates_per_step"] == pytest.approx(0.25, rel=0.01)
    assert result["episodes"] > 10
    assert [steps // 4 for steps in checkpoints(run)] == [200, 250]
    assert [row["env_steps"] // 4 for row in metrics(run, "eval")] == [100, 200, 250]
    stages = metrics(run, "train")[-1]["stage_seconds"]
    assert list(stages) == ["select", "step", "insert", "sample", "redraw", "transfer", "update", "evaluate", "log"]
    assert stages["step"] > 0 < stages["update"]
    assert 0 < result["seconds_evaluating"] < result["seconds"]
    assert hotloop("eval", "run", "--episodes", "3", "--json").json["episodes"] == 3
    resumed = hotloop("resume", "run", "--steps", "1600", "--json").json
    assert 1600 <= resumed["env_steps"] < 1604
    assert resumed["updates"] - result["updates"] == pytest.approx(150, abs=1)


@pytest.mark.heavy
def test_the_choice_of_the_pipeline_is_said_with_its_reason(hotloop):
    ran = hotloop("train", "--env", "FrozenLake-v1", *SMALL, "--steps", "300", "--out", "lake")
    assert ran.code == 0, ran.err
    assert "pipeline: sync (the env is a Gymnasium env, stepped on the host)" in ran.err


@pytest.mark.heavy
def test_two_runs_on_a_gymnasium_env_end_in_the_same_bits(hotloop, tmp_path):
    for out in ("one", "two"):
        assert hotloop("train", "--env", "CartPole-v1", *SMALL, "--steps", "600", "--out", out).code == 0
    assert manifest(tmp_path / "one")["digests"] == manifest(tmp_path / "two")["digests"]


@pytest.mark.heavy
def test_an_env_that_gives_nan_is_named_and_the_run_is_saved(hotloop, tmp_path):
    (tmp_path / "broken_env.py").write_text(BROKEN_ENV)
    args = ("train", "--env", "broken_env:Broken-v0", *SMALL, "--steps", "5000", "--out", "run")
    ran = hotloop(*args, env={"PYTHONPATH": str(tmp_path)})
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("hotloop: env 0 gave a reward that is not finite (env step 476)")
    assert checkpoints(tmp_path / "run")[-1] == 476


@pytest.mark.heavy
def test_an_env_that_raises_is_built_anew_counted_and_told(hotloop, tmp_path):
    (tmp_path / "broken_env.py").write_text(BROKEN_ENV)
    args = ("--env", "broken_env:Broken-v0", "--set", "env.options.raises=true", *SMALL, "--steps", "800")
    ran = hotloop("train", *args, "--out", "run", env={"PYTHONPATH": str(tmp_path)})
    assert ran.code == 0, ran.err
    assert "out of ammunition" in ran.err
    assert metrics(tmp_path / "run", "train")[-1]["env_failures"] >= 4


def test_an_env_that_fails_in_an_evaluation_leaves_the_run_saved(hotloop, tmp_path):
    (tmp_path / "broken_env.py").write_text(BROKEN_ENV)
    own = ("--set", "env.options.raises=true", "--set", "evaluation.options={raises: false}")
    args = ("train", "--env", "broken_env:Broken-v0", *SMALL, *own, "--set", "evaluation.episodes=200")
    ran = hotloop(*args, "--steps", "800", "--out", "run", env={"PYTHONPATH": str(tmp_path)})
    assert ran.code == 1
    assert "gave a reward that is not finite" in ran.err
    assert "the run is saved" in ran.err
    assert checkpoints(tmp_path / "run")


@pytest.mark.heavy
def test_a_checkpoint_without_the_replay_is_small_and_says_so_when_resumed(hotloop, tmp_path):
    args = ("train", "--env", "CartPole-v1", *SMALL, "--set", "log.save_replay=false", "--steps", "600", "--out", "run")
    assert hotloop(*args).code == 0
    ran = hotloop("resume", "run", "--steps", "800")
    assert ran.code == 0, ran.err
    assert "the checkpoint has no replay: learning goes on after 64 env steps more" in ran.err


@pytest.mark.heavy
def test_a_replay_that_does_not_fit_is_refused_with_the_figures_and_remedies(hotloop):
    args = ("--env", "ALE/Pong-v5", "--set", "network.torso={kind: cnn, layout: CHW}")
    small = {"HOTLOOP_MEMORY_LIMIT": str(500 << 20)}
    said = hotloop("train", *args, "--set", "replay.storage=whole", env=small).refusal
    assert "needs 5." in said
    assert "500.0 MiB is available; lower replay.capacity, or " in said
    assert "replay.stacked_frames=4" in said
    ran = hotloop("train", *args, "--set", "replay.stacked_frames=4", "--plan", "--json")
    assert ran.json["total"] < 0.8 * (1 << 30)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--env", "CartPol-v1"], "'CartPole-v1'"),
        (["--env", "Pendulum-v1"], "needs Discrete ones"),
        (["--env", "CartPole-v1", "--pipeline", "fused"], "use sync, concurrent, processes or auto"),
        (["cartpole", "--pipeline", "concurrent"], "use fused, sync or auto"),
        (["--env", "CartPole-v1", "--set", "on_policy={}"], "on_policy is for device envs and pipeline fused"),
        (["cartpole", "--set", "log.save_replay=false"], "log.save_replay is not for device envs"),
        (["--env", "CartPole-v1", "--set", "replay.stacked_frames=3"], "observation has shape (4,)"),
        (["--env", "CartPole-v1", "--set", "replay.hindsight={}"], "needs observations with 'achieved_goal'"),
        (["--env", "FrozenLake-v1", "--set", "env.vectorization=native"], "no vector entry point"),
        (["--env", "CartPole-v1", "--set", "evaluation.options={nonsense: 3}"], "evaluation.options: "),
        (["cartpole", "--set", "env.info=[x]"], "env.info is not for device envs"),
        (
            ["cartpole", "--set", "evaluation.max_share=2"],
            "evaluation.max_share is not for device envs: their evaluations",
        ),
        (["--env", "CartPole-v1", "--set", "evaluation.max_share=0"], "evaluation.max_share: got 0"),
        (["--env", "CartPole-v1", "--set", "env.vectorization=magic"], "env.vectorization"),
        (["--env", "CartPole-v1", "--set", "env.options.gravity=3"], "gravity"),
        (["--env", "nowhere:Thing-v0"], "nowhere"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(hotloop_here, args, said):
    assert said in hotloop_here("train", *args).refusal
