"""Teams on the host learn, resume, are loaded, evaluated and recorded, with both engines."""

import json
import shutil

import numpy as np
import pytest
from lines_env import Lines
from parallel_envs import Matching, counting_envs, parallel_env

import hotloop
from hotloop.assembly import Assembly, Own, trains_in_turn
from hotloop.engines.jax.host import JaxOnHost
from hotloop.errors import SpecError
from hotloop.runs.state import digests
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

SPEC = {
    "discount": 0.0,
    "updates_per_step": 0.5,
    "network": {"torso": {"hidden": [32]}},
    "optimizer": {"learning_rate": 0.01},
    "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 600}},
    "replay": {"capacity": 2000, "start": 64, "batch_size": 32},
    "env": {"num_envs": 4},
    "evaluation": {"every": 600, "episodes": 8},
    "stop": {"steps": 1200},
    "log": {"every": 300, "checkpoint_every": 600},
    "torch": {"mode": "auto"},
}
BEST = {"small": 3.0, "large": 5.0}


@pytest.fixture(scope="module", params=["jax", "torch"])
def trained(request, tmp_path_factory):
    """Two agents of different shapes, of which one leaves early."""
    mode = {"torch": {"mode": "eager"}} if request.param == "torch" else {"torch": {}}
    spec = {**SPEC, **mode, "engine": request.param, "env": {**SPEC["env"], "info": ["turns"]}}
    run = hotloop.train(spec, env=parallel_env, out=tmp_path_factory.mktemp(request.param) / "run")
    return run


def test_agents_of_different_shapes_learn_what_is_best_for_each(trained):
    assert trained.return_mean == pytest.approx(np.mean(list(BEST.values())))
    played = trained.agent.evaluate(6)
    assert played["by_agent"]["return_mean"] == list(BEST.values())
    assert played["by_agent"]["length_mean"] == [3.0, 5.0], "of each agent its own turns"
    assert played["by_agent"]["turns_mean"] == [3.0, 5.0], "at its own end"
    assert trained.env_steps == 1200


def test_a_team_acts_by_name_in_the_spaces_of_each(trained):
    team = trained.agent
    assert team.names == ("small", "large")
    for target in range(2):
        assert team.predict({"small": np.eye(2, dtype=np.float32)[target], "large": target}) == {
            "small": target,
            "large": target,
        }
    assert team.predict({"large": 3}) == {"large": 3}, "who is not there is not asked"
    assert team.predict({"large": np.array([0, 3, 1])})["large"].tolist() == [0, 3, 1]
    with pytest.raises(ValueError, match="there is no agent 'cid'; the agents are small, large"):
        team.predict({"cid": 0})


def test_what_a_run_leaves_behind_is_of_all_agents(trained):
    lines = [json.loads(line) for line in (trained.path / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["kind"] == "train"]
    assert all(len(line["by_agent"]["ep_return_mean"]) == 2 for line in train)
    assert train[-1]["by_agent"]["ep_length_mean"] == [3.0, 5.0]
    small, large = train[-1]["by_agent"]["updates"]
    assert 0.55 < small / large < 0.65, "gradient steps are earned by an agent's own transitions: 3 of 5 turns"
    assert (trained.path / "recording.gif").stat().st_size > 0
    assert {"agent-0", "agent-1"} <= {path.name for path in trained.path.iterdir()}
    alone = hotloop.load(trained, which="agent-1").evaluate(4)
    assert alone["return_mean"] == BEST["large"]
    assert "by_agent" not in alone


def test_a_run_goes_on_from_its_checkpoint(trained, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run")
    again = hotloop.resume(tmp_path / "run", steps=1600, env=parallel_env)
    assert again.env_steps == 1600
    assert again.return_mean == pytest.approx(4.0)


def begun(factory=parallel_env, seed=0, **more):
    session = Assembly(parse_spec({**SPEC, "torch": {}, "seed": seed, **more}), Own(env=factory)).session(None)
    session.compile()
    session.begin()
    return session


@pytest.mark.as_users_compile
@pytest.mark.parametrize("weights", ["shared", pytest.param("own", marks=pytest.mark.heavy)])
def test_envs_that_can_be_saved_go_on_to_the_same_bits(weights):
    replay = {"replay": {**SPEC["replay"], "n_step": 2, "sampling": {"kind": "prioritized"}}}
    more = {**replay, "agents": {"weights": weights}}

    def factory():
        return Matching(alike=weights == "shared")

    session = begun(factory, **more)
    session.members = session.spec.members
    session.advance(63)
    kept = {name: np.array(array) for name, array in session.arrays().items()}
    assert kept["team/envs/acting"].tolist() == [[False, True]] * 4, "in mid-episode, which one agent has left"
    session.advance(40)
    other = begun(factory, seed=9, **more)
    assert other.restore(kept) == []
    other.advance(40)
    assert digests(other.arrays()) == digests(session.arrays())


def test_learners_in_one_batched_program_learn_what_they_do_one_after_the_other(monkeypatch):
    """On accelerators they do; the numbers differ by rounding."""
    found, batches = [], []
    for together in (False, True):
        monkeypatch.setattr(JaxOnHost, "prefers_batches", together)
        session = begun(lambda: Matching(alike=True, leaves=5))
        [engine] = {id(run.engine): run.engine for run in session.runs}.values()
        compiled = engine._compiled_update_all._cache_size()
        real = engine.update_all
        monkeypatch.setattr(
            engine, "update_all", lambda lessons, real=real: batches.append(len(lessons)) or real(lessons)
        )
        session.advance(40)
        found.append([engine.to_named(run.weights(0)) for run in session.runs])
        assert (session.read().updates > 40).all()
        assert engine._compiled_update_all._cache_size() == compiled == int(together), "before the clock runs"
    assert set(batches) == {2}, "only the second of them, and both learners at once"
    for one, other in zip(*found, strict=True):
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=1e-4)


def test_envs_that_cannot_be_saved_begin_new_episodes_and_it_is_said():
    factory, _ = counting_envs()
    session = begun(factory)
    session.advance(60)
    kept = {name: np.array(array) for name, array in session.arrays().items()}
    other = begun(factory)
    [line] = other.restore(kept)
    assert "running episodes cannot be restored" in line
    before = other.read()
    assert before.env_steps == session.read().env_steps
    assert before.episodes.tolist() == session.read().episodes.tolist()
    other.advance(10)
    assert (other.read().updates > before.updates).all()


def test_a_checkpoint_without_replays_goes_on_with_empty_ones():
    session = begun()
    session.advance(63)
    kept = {name: np.array(array) for name, array in session.arrays().items() if "/replay/" not in name}
    other = begun(seed=2)
    assert len(other.restore(kept)) == 2, "running episodes, and the replays"
    at = other.read()
    other.advance(SPEC["replay"]["start"] // 4 - 1)
    assert (other.read().updates == at.updates).all()
    other.advance(10)
    assert (other.read().updates > at.updates).all()


def test_agents_of_several_shapes_learn_eagerly_with_torch_and_it_is_said():
    with Assembly(parse_spec({**SPEC, "engine": "torch"}), Own(env=parallel_env)) as assembly:
        assert assembly.spec.torch.mode == "eager"
        assert assembly.notices == ["torch.mode: eager, as the agents' networks are of several shapes"]
        assert len(set(map(id, assembly.engines))) == 2


def test_a_checkpoint_of_another_number_of_agents_is_refused():
    kept = begun().arrays()
    with pytest.raises(ValueError, match="the checkpoint's learner/params is"):
        begun(counting_envs()[0]).restore(kept)
    kept["learner-7/x"] = np.zeros(1)
    with pytest.raises(ValueError, match=r"unknown \['learner-7'\], expected 2 learner"):
        begun().restore(kept)


def test_two_runs_of_a_seed_are_the_same_and_agents_are_not_each_others_copies():
    ends = []
    for _ in range(2):
        session = begun(lambda: Matching(alike=True), seed=3)
        session.advance(40)
        ends.append(digests(session.arrays()))
    assert ends[0] == ends[1]
    assert ends[0]["learner-0"] != ends[0]["learner-1"]
    assert session.runs[0].engine is session.runs[1].engine, "agents of one shape share an engine"


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_shared_weights_learn_from_all_agents(engine, tmp_path):
    spec = {**SPEC, "engine": engine, "torch": {"mode": "eager"} if engine == "torch" else {}}
    spec |= {"agents": {"weights": "shared"}, "env": {"num_envs": 4, "options": {"alike": True}}}
    run = hotloop.train(spec, env=parallel_env, out=None)
    assert run.return_mean == pytest.approx(4.0)
    assert run.agent.predict({"small": 3, "large": 1}) == {"small": 3, "large": 1}
    assert run.agent.evaluate(3)["by_agent"]["return_mean"] == list(BEST.values())


def test_shared_weights_are_refused_for_agents_of_different_spaces():
    with pytest.raises(SpecError, match="small and large have other observations or actions; use own"):
        hotloop.train({**SPEC, "torch": {}, "agents": {"weights": "shared"}}, env=parallel_env, out=None)


@pytest.mark.parametrize("weights", ["own", "shared"])
def test_device_envs_with_several_agents_are_stepped_from_the_host_by_engine_torch(weights, tmp_path):
    spec = {**SPEC, "engine": "torch", "torch": {"mode": "eager"}, "discount": 0.8, "agents": {"weights": weights}}
    spec |= {"stop": {"steps": 2400}, "evaluation": {"every": 1200, "episodes": 32}, "updates_per_step": 0.25}
    run = hotloop.train(spec, device_env=Lines(agents=2, size=3, turns=6), out=tmp_path / "run")
    assert run.return_mean > 4.5, "walking to the goal and staying there is worth 5.1 on average"
    again = hotloop.load(tmp_path / "run", device_env=Lines(agents=2, size=3, turns=6))
    assert again.names == ("walker_0", "walker_1")
    again.record(tmp_path / "again.gif")
    assert (tmp_path / "again.gif").stat().st_size > 0


@pytest.mark.as_users_compile
def test_device_envs_stepped_from_the_host_resume_to_the_same_bits():
    more = {"engine": "torch", "torch": {"mode": "eager"}}
    session = begun(Lines(agents=2), **more)
    session.advance(50)
    kept = {name: np.array(array) for name, array in session.arrays().items()}
    session.advance(20)
    other = begun(Lines(agents=2), seed=5, **more)
    assert other.restore(kept) == []
    other.advance(20)
    assert digests(other.arrays()) == digests(session.arrays())


def test_evaluations_end_at_their_limits():
    spec = {**SPEC, "torch": {}, "evaluation": {"every": 200, "episodes": 4, "max_steps": 2, "max_share": 1.0}}
    session = Assembly(parse_spec(spec), Own(env=parallel_env)).session(parse_spec(spec).members)
    session.members = session.spec.members
    session.begin()
    session.advance(100)
    small, large = session.evaluate()
    assert small.length.tolist() == large.length.tolist() == [2] * 4
    assert large.endless.all()


def test_several_seeds_of_a_team_are_trained_in_turn():
    assert trains_in_turn(parse_spec({**SPEC, "torch": {}, "seeds": 2}), Own(env=parallel_env))
