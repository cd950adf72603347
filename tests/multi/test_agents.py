"""Several agents in one device env: each learns by itself, from its own real transitions, on one device or several."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lines_env import Lines
from train_lines import SPEC

import hotloop
from hotloop.assembly import Assembly, Own
from hotloop.errors import Diverged, SpecError
from hotloop.pipelines.agents import Agents, Part
from hotloop.pipelines.fused import FusedState
from hotloop.replay import ring
from hotloop.runs import checkpoint, metrics
from hotloop.spec.reading import load_spec
from hotloop.team import Team

HERE = Path(__file__).parent


def agents_of(**changes: Any) -> Agents:
    spec = load_spec(SPEC, changes)
    pipeline = Assembly(spec, Own(env=lambda **options: Lines(**options))).pipeline
    assert isinstance(pipeline, Agents)
    return pipeline


def everyone(pipeline: Agents) -> Part:
    return pipeline.all_of(pipeline.axis.rows)


def advanced(pipeline: Agents, blocks: int, seed: int = 0) -> FusedState:
    run = jax.jit(lambda state: pipeline.run_joint_block(state, everyone(pipeline)))
    state = jax.jit(pipeline.init)(jnp.uint32(seed))
    for _ in range(blocks):
        state = run(state)
    return state


def places(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    place, goal = np.round((np.asarray(obs) + 1) / 2 * 5).astype(int).T
    return place, goal


def rows_of(pipeline: Agents, state: FusedState, learner: int) -> Any:
    stored = jax.tree.map(lambda leaf: np.asarray(leaf)[learner], state.replay.ring.rows)
    return jax.tree.map(lambda leaf: leaf[: int(state.replay.ring.size)], stored)


# -- what is stored ---------------------------------------------------------------------------------------


@pytest.mark.less_optimised
@pytest.mark.parametrize("weights", ["own", "shared"])
def test_every_row_is_a_real_transition_of_its_own_agent(weights: str) -> None:
    pipeline = agents_of(agents={"weights": weights})
    state = advanced(pipeline, 30)
    for learner in range(pipeline.num_learners):
        rows = rows_of(pipeline, state, learner)
        (before, goal), (after, goal_after) = places(rows.s_tm1), places(rows.s_t)
        assert len(before) == 30 * 4 * pipeline.per_learner
        np.testing.assert_array_equal(after, np.clip(before + rows.a_tm1 - 1, 0, 4))
        np.testing.assert_array_equal(goal, goal_after)  # never across two episodes
        np.testing.assert_array_equal(rows.r_t, after == goal)
        np.testing.assert_allclose(rows.discount_t, 0.99)  # a time limit does not cut the bootstrap
    if weights == "own":
        each = [rows_of(pipeline, state, learner).s_tm1 for learner in range(3)]
        assert not np.array_equal(each[0], each[1])
        assert not np.array_equal(each[1], each[2])


@pytest.mark.less_optimised
def test_returns_of_three_steps_are_discounted_for_the_steps_they_have() -> None:
    pipeline = agents_of(**{"replay.n_step": 3, "env.options": {"agents": 2, "turns": 5}})
    state = advanced(pipeline, 40)
    for learner in range(2):
        rows = rows_of(pipeline, state, learner)
        (before, goal), (after, _) = places(rows.s_tm1), places(rows.s_t)
        steps = np.round(np.log(rows.discount_t) / np.log(0.99)).astype(int)
        assert set(steps) == {1, 2, 3}, "shorter ones at the ends of episodes"
        assert np.isin(np.abs(after - before) <= steps, True).all()
        most = np.array([sum(0.99**k for k in range(n)) for n in steps])
        assert (rows.r_t <= most + 1e-6).all()
        one = steps == 1
        np.testing.assert_array_equal(rows.r_t[one], (after == goal)[one])


# -- who learns what --------------------------------------------------------------------------------------


@pytest.mark.less_optimised
@pytest.mark.parametrize(
    "sampling",
    [{}, pytest.param({"replay.sampling": {"kind": "prioritized", "updates_per_draw": 1}}, marks=pytest.mark.heavy)],
)
def test_each_learner_takes_the_gradient_steps_of_its_own_draws(sampling: dict[str, Any]) -> None:
    """An engine by itself, given an agent's own batches, ends in that agent's weights."""
    pipeline = agents_of(**sampling)
    before = advanced(pipeline, 20)
    part, engine = everyone(pipeline), pipeline.engine
    after = jax.jit(lambda state: pipeline.run_joint_block(state, part))(before)
    key = jax.random.fold_in(jax.random.wrap_key_data(before.key), before.blocks)
    keys = jax.random.split(key, 3)[1:]
    for i in range(3):
        learner = jax.tree.map(lambda leaf, at=i: leaf[at], before.learner)
        storage = after.replay._replace(
            ring=after.replay.ring._replace(rows=jax.tree.map(lambda leaf, at=i: leaf[at], after.replay.ring.rows)),
            priorities=jax.tree.map(lambda leaf, at=i: leaf[at], before.replay.priorities),
        )
        if sampling:  # as an insertion leaves them
            rows = jax.tree.map(lambda leaf, at=i: leaf[at], before.replay.ring.rows)
            filled = pipeline.replay.insert(
                storage._replace(ring=before.replay.ring._replace(rows=rows)),
                jax.tree.map(lambda leaf: leaf[:4], storage.ring.rows),
            )
            storage = storage._replace(priorities=filled.priorities)
        drawn = pipeline.replay.sample(storage, jax.random.fold_in(keys[0], i), after.env_steps)
        learned, _, _ = engine.update(learner, drawn.batches, engine.learning_rate(before.env_steps), drawn.weight_KB)
        moved = engine.move_target(learned, after.env_steps // 200 - before.env_steps // 200)
        np.testing.assert_allclose(after.learner.params[i], moved.params, rtol=1e-5, atol=1e-6)
        assert not np.allclose(after.learner.params[i], learner.params)


@pytest.mark.less_optimised
def test_what_one_agent_is_paid_changes_no_other() -> None:
    """With its rewards gone, one learner learns otherwise; the rest do not, as they act on what they see alone."""
    pipeline = agents_of()

    class Unpaid(Lines):
        def step(self, state: Any, action_M: Any, key: Any) -> Any:
            state, obs, reward, *rest = Lines.step(self, state, action_M, key)
            return state, obs, reward.at[1].set(0.0), *rest

    usual = advanced(pipeline, 60)
    pipeline.env = Unpaid(3, 5, 8)
    other = advanced(pipeline, 60)
    apart = np.abs(np.asarray(usual.learner.params) - np.asarray(other.learner.params)).max(axis=1)
    assert (apart[[0, 2]] < 1e-5).all()
    assert apart[1] > 1e-2


class Broken(Lines):
    """The second agent's rewards are now and then no number."""

    def step(self, state: Any, action_M: Any, key: Any) -> Any:
        state, obs, reward, *rest = Lines.step(self, state, action_M, key)
        is_bad = jax.random.uniform(jax.random.fold_in(key, 1)) < 0.3
        return state, obs, reward.at[1].set(jnp.where(is_bad, jnp.nan, reward[1])), *rest


@pytest.mark.heavy
def test_one_agent_that_diverges_ends_the_run_at_once() -> None:
    """After as many skipped updates as the guard allows, however long a chunk is."""
    with pytest.raises(Diverged, match=r"the last 10 updates of agent 1 had a loss or gradient that is"):
        hotloop.train(SPEC, env=Broken(), out=None, **{"guard.skips_in_a_row": 10, "stop.steps": 20_000})


def test_all_keys_of_a_block_differ() -> None:
    pipeline = agents_of()
    part, key = everyone(pipeline), jax.random.key(5)
    act, sample, learn = jax.random.split(key, 3)
    each = [jax.random.key_data(pipeline._keys(one, part)) for one in (sample, learn)]
    each += [jax.random.key_data(jax.random.split(jax.random.fold_in(act, i), 2)) for i in range(4)]
    rows = np.concatenate([np.asarray(one).reshape(-1, 2) for one in each])
    assert len(np.unique(rows, axis=0)) == len(rows)


# -- whole runs -------------------------------------------------------------------------------------------


def train(folder: Path, devices: int, **asked: Any) -> dict[str, Any]:
    env = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, str(HERE / "train_lines.py"), str(folder), json.dumps(asked)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def digests(folder: Path) -> dict[str, Any]:
    newest = checkpoint.newest_first(folder / "checkpoints")[0]
    manifest: dict[str, Any] = json.loads((newest / "manifest.json").read_text())
    return manifest["digests"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents")


@pytest.fixture(scope="module")
def on_two(folder: Path) -> dict[str, Any]:
    return train(folder / "two", 2, set={"env.options": {"agents": 5}})


@pytest.mark.heavy
def test_five_agents_on_two_devices_are_those_on_one(folder: Path, on_two: dict[str, Any]) -> None:
    train(folder / "one", 1, set={"env.options": {"agents": 5}})
    one, two = (hotloop.load(folder / name, env=lambda **o: Lines(**o), which="last") for name in ("one", "two"))
    assert isinstance(one, Team)
    assert isinstance(two, Team)
    for first, second in zip(one.weights, two.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


def test_a_run_says_what_each_agent_did(folder: Path, on_two: dict[str, Any]) -> None:
    assert on_two["agents"] == [0, 1, 2, 3, 4]
    assert len(on_two["by_agent"]["return_mean"]) == 5
    assert on_two["return_mean"] == pytest.approx(np.mean(on_two["by_agent"]["return_mean"]))
    assert on_two["env_steps"] == 2_000
    assert on_two["updates_per_step"] == 0.25, "of each agent"
    assert on_two["updates"] == (2_000 - 64) / 4 + 1
    lines = metrics.read(folder / "two" / "metrics.jsonl")
    train_lines = [line for line in lines if line["kind"] == "train"]
    assert all(len(line["by_agent"]["loss"]) == 5 for line in train_lines)
    evaluated = [line for line in lines if line["kind"] == "eval"]
    assert len(evaluated[-1]["by_agent"]["reached_mean"]) == 5
    assert "return_iqm" not in evaluated[-1], "agents are no sample"
    for name in ("best", "last", "agent-0", "agent-4", "curve.png", "recording.gif"):
        assert (folder / "two" / name).exists()


def test_an_interrupted_run_resumes_to_the_same_bits(folder: Path, on_two: dict[str, Any]) -> None:
    """Also on another number of devices: idle learners are in no file."""
    train(folder / "cut", 2, set={"env.options": {"agents": 5}}, stop_at=1_000)
    train(folder / "cut", 1, resume=True)
    assert digests(folder / "cut") == digests(folder / "two")


def test_teams_predict_a_dict_and_are_looked_at_one_by_one(folder: Path, on_two: dict[str, Any]) -> None:
    team = hotloop.load(folder / "two", env=lambda **o: Lines(**o))
    assert isinstance(team, Team)
    obs = {name: np.array([-1.0, 0.2], np.float32) for name in ("walker_0", "walker_3")}
    acts = team.predict(obs)
    assert set(acts) == {"walker_0", "walker_3"}
    assert all(isinstance(action, int) for action in acts.values())
    batch = team.predict({"walker_1": np.zeros((7, 2), np.float32)})["walker_1"]
    assert np.shape(batch) == (7,)
    with pytest.raises(ValueError, match="there is no agent 'walker_9'; the agents are walker_0"):
        team.predict({"walker_9": np.zeros(2)})
    with pytest.raises(ValueError, match="takes a dict of observations by agent"):
        team.predict(np.zeros(2))
    figures = team.evaluate(8, seed=1)
    assert len(figures["by_agent"]["return_mean"]) == 5
    fourth = hotloop.load(folder / "two", env=lambda **o: Lines(**o), which="agent-3")
    last = hotloop.load(folder / "two", env=lambda **o: Lines(**o), which="last")
    assert fourth.evaluate(8, seed=1)["return_mean"] == last.evaluate(8, seed=1)["by_agent"]["return_mean"][3]
    with pytest.raises(SpecError, match="agent-7"):
        hotloop.load(folder / "two", env=lambda **o: Lines(**o), which="agent-7")


@pytest.mark.parametrize("weights", ["own", pytest.param("shared", marks=pytest.mark.heavy)])
def test_agents_learn(weights: str, folder: Path) -> None:
    """Six of eight turns on the goal is near the best: it is two turns away on average."""
    asked = {"agents": {"weights": weights}, "stop.steps": 6_000, "optimizer.learning_rate": 0.002}
    run = hotloop.train(SPEC, env=lambda **o: Lines(**o), out=None, **asked)
    assert run.return_mean > 5.8
    assert isinstance(run.agent, Team)
    assert run.agent.evaluate(40)["return_mean"] > 5.8


@pytest.mark.heavy
def test_several_seeds_of_agents_are_trained_one_after_the_other(folder: Path) -> None:
    run = hotloop.train(SPEC, env=lambda **o: Lines(**o), out=folder / "seeds", seeds=2, **{"stop.steps": 1_000})
    assert run.seeds == [0, 1]
    assert len(run.by_seed["return_mean"]) == 2
    alone = hotloop.train(SPEC, env=lambda **o: Lines(**o), out=folder / "seed-alone", seed=1, **{"stop.steps": 1_000})
    assert run.by_seed["return_mean"][1] == alone.return_mean
    team = hotloop.load(folder / "seeds", env=lambda **o: Lines(**o), which="seed-1")
    assert isinstance(team, Team)
    assert len(team.weights) == 3
    further = hotloop.resume(folder / "seeds", env=lambda **o: Lines(**o), steps=1_200)
    assert further.seeds == [0, 1]
    assert further.env_steps == 1_200
    assert not list((folder / "seeds").glob("agent-*"))


@pytest.mark.heavy
def test_a_profile_counts_the_stages_of_all_agents(tmp_path: Path) -> None:
    run = hotloop.profile(SPEC, env=lambda **o: Lines(**o), out=tmp_path / "run")
    names = [stage["stage"] for stage in run.profile["stages"]]
    assert names[:4] == ["select", "env step", "insert", "sample"]
    assert run.profile["q_loss"]["calls"] == 3 * run.updates
    assert (tmp_path / "run" / "profile.png").stat().st_size > 10_000


# -- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"turns": {"every": 4, "updates": 1}}, "turns"),
        ({"devices": 2}, "agents are shared out over all devices"),
        ({"pipeline": "concurrent"}, "several agents"),
        ({"env.options": {"agents": 0}}, "num_agents is 0"),
        ({"agents": {"weights": "none"}}, "agents.weights"),
        ({"replay.hindsight": {}}, "hindsight"),
    ],
)
def test_what_does_not_go_with_several_agents_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        hotloop.train(SPEC, env=lambda **o: Lines(**o), out=None, **asked)


def test_agents_are_refused_where_there_is_one() -> None:
    with pytest.raises(SpecError, match="agents is for an env in which several act, but cartpole has one"):
        hotloop.train("cartpole", out=None, agents={"weights": "shared"})


def test_a_run_of_other_agents_is_refused(folder: Path, on_two: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"is for 5 agents .*, but the env has 3"):
        hotloop.load(folder / "two", env=lambda **o: Lines(agents=3))


class NoNames(Lines):
    agent_names = ("a", "a", "b")  # type: ignore[assignment]


class MoreNames(Lines):
    agent_names = ("a", "a", "b", "c")  # type: ignore[assignment]


class OnePaid(Lines):
    def step(self, state: Any, action_M: Any, key: Any) -> Any:
        state, obs, reward, *rest = Lines.step(self, state, action_M, key)
        return state, obs, reward.sum(), *rest


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (NoNames, "3 different names"),
        (MoreNames, "3 different names"),
        (OnePaid, "one number for each agent: float32\\(3,\\)"),
    ],
)
def test_an_env_that_breaks_the_contract_is_told_so(env: type[Lines], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        hotloop.train(SPEC, env=env(), out=None)


def test_a_replay_too_small_for_the_rows_of_all_is_refused() -> None:
    asked = {"agents": {"weights": "shared"}, "env.num_envs": 64, "replay.capacity": 128, "replay.start": 64}
    with pytest.raises(SpecError, match="a block of 3 agents with shared weights brings 192 transitions"):
        hotloop.train(SPEC, env=Lines(), out=None, **asked)


def test_an_agent_is_not_looked_for_where_there_is_one(tmp_path: Path) -> None:
    never = {"stop.steps": 512, "stop.return_at_least": None, "evaluation.every": 0}
    hotloop.train("cartpole", out=tmp_path / "run", **never)
    with pytest.raises(SpecError, match="agent-1"):
        hotloop.load(tmp_path / "run", which="agent-1")


@pytest.mark.heavy
def test_endless_episodes_of_a_team_are_counted_once() -> None:
    asked = {"evaluation": {"every": 1_000, "episodes": 4, "max_steps": 5}, "stop.steps": 1_000}
    assert hotloop.train(SPEC, env=Lines(), out=None, **asked).episodes_endless == 4


def test_a_ring_of_shared_weights_takes_the_rows_of_all() -> None:

    pipeline = agents_of(**{"agents": {"weights": "shared"}})
    assert pipeline.replay.capacity == ring.whole_blocks(2_000, 4 * pipeline.num_agents)
