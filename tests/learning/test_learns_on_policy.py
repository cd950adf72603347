"""Learning without a replay, seen from its results."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_learns import CODE, DISCOUNT, Lock, optimal_q

import hotloop
from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.cartpole import CartPole
from hotloop.pipelines.device_play import episodes_program, to_host
from hotloop.pipelines.on_policy import OnPolicy, OnPolicyState
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec, parse_spec


class Program(NamedTuple):
    """A pipeline, its compiled loop, and the state it begins in."""

    pipeline: OnPolicy
    advance: Any
    start: OnPolicyState


def compiled(spec: Spec, env: Any) -> Program:
    obs = jax.ShapeDtypeStruct(env.obs_spec.shape, np.float32)
    pipeline = OnPolicy(spec, env, JaxEngine(spec, obs, env.num_actions))
    return Program(pipeline, jax.jit(pipeline.advance), jax.jit(pipeline.init)(jnp.uint32(0)))


@pytest.mark.less_optimised
def test_a_lock_is_opened_and_its_values_are_the_optimal_ones() -> None:
    """With λ = 0 exploring leaves no trace in the targets, and truncated tries must keep their bootstrap."""
    spec = parse_spec(
        {
            "discount": DISCOUNT,
            "network": {"torso": {"hidden": [32], "normalization": "layer"}, "head": {"dueling": True}},
            "loss": {"kind": "mse"},
            "optimizer": {"learning_rate": {"kind": "linear", "start": 3e-3, "end": 3e-4, "steps": 30_000}},
            "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.3, "steps": 10_000}},
            "on_policy": {"steps": 8, "epochs": 2, "minibatches": 4, "trace": 0.0},
        }
    )
    pipeline, advance, start = compiled(spec, Lock())
    end = advance(start, jnp.int32(300))
    evaluate = jax.jit(episodes_program(pipeline.env, pipeline.engine, episodes=4, max_steps=100))
    played = to_host(evaluate(end.learner.params, jax.random.key(0))).summary()
    assert (played["return_mean"], played["length_mean"]) == (1.0, len(CODE))
    q = np.asarray(pipeline.engine.q_values(end.learner.params, np.eye(len(CODE), dtype=np.float32)))
    np.testing.assert_allclose(q, optimal_q(), atol=0.05)


@pytest.mark.heavy
def test_cartpole_is_balanced_in_seconds() -> None:
    """Within 300,000 env steps, a second or two of training; seeds needed 60,000 to 280,000 for 475."""
    pipeline, advance, state = compiled(load_spec("pqn", {}), CartPole())
    evaluate = jax.jit(episodes_program(pipeline.env, pipeline.engine, episodes=100, max_steps=1000))
    returns = [0.0]
    while returns[-1] < 400 and state.env_steps < 300_000:
        state = advance(state, jnp.int32(20_000 // pipeline.block_plan.env_steps))
        played = to_host(evaluate(state.learner.params, jax.random.key(len(returns))))
        returns.append(played.summary()["return_mean"])
    assert returns[-1] >= 400, returns


@pytest.mark.slow
def test_the_preset_is_solved_by_four_of_five_seeds(tmp_path: Any) -> None:
    runs = [hotloop.train("pqn", seed=seed, out=tmp_path / str(seed)) for seed in range(5)]
    solved = [run for run in runs if run.return_mean >= 475]
    assert len(solved) >= 4, [(run.env_steps, run.return_mean) for run in runs]


@pytest.mark.slow
def test_the_snake_preset_reaches_a_score_of_30(tmp_path: Any) -> None:
    run = hotloop.train("snake_pqn", out=tmp_path / "run")
    assert hotloop.load(run).evaluate(episodes=100, seed=1)["score_mean"] >= 30
