"""Several agents whose envs are in processes of their own: the bits of sync, real transitions, faults, both engines."""

import os
import signal
import threading

import numpy as np
import pytest
from parallel_envs import AGENTS, Counting, Matching, counting_envs, life, parallel_env

import hotloop
from hotloop.assembly import Assembly, Own
from hotloop.errors import SpecError
from hotloop.pipelines.learning_run import EPISODES_LOST
from hotloop.run_plan import describe
from hotloop.spec.reading import parse_spec

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("nothing_left")]

SPEC = {
    "discount": 0.0,
    "updates_per_step": 0.5,
    "network": {"torso": {"hidden": [32]}},
    "optimizer": {"learning_rate": 0.01},
    "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 600}},
    "replay": {"capacity": 2048, "start": 64, "batch_size": 32},
    "env": {"num_envs": 4},
    "evaluation": {"every": 0},
    "stop": {"steps": 100_000},
}
BEST = {"small": 3.0, "large": 5.0}


class Begun:
    """A session that is closed, with all its processes."""

    def __init__(self, make, restored=None, actors=None, **more):
        in_processes = {} if actors is None else {"pipeline": "processes", "actors": actors}
        self.spec, self.make, self.restored = parse_spec({**SPEC, **in_processes, **more}), make, restored

    def __enter__(self):
        self.assembly = Assembly(self.spec, Own(env=self.make))
        session = self.assembly.session(self.assembly.spec.members)
        session.compile()
        session.said = session.begin() if self.restored is None else session.restore(self.restored)
        return session

    def __exit__(self, *_):
        self.assembly.close()


def learned(session, blocks=60):
    """What each learner has learned and counted after so many blocks, by name."""
    session.advance(blocks)
    assert session.read().updates.min() > 20
    return {
        name: np.array(array)
        for name, array in session.arrays().items()
        if name.split("/")[1] in ("learner", "counters", "totals")
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert np.array_equal(one[name], other[name]), name


def alike(**options):
    return Matching(alike=True, **options)


KINDS = {
    "agents of two shapes, one leaves early": (parallel_env, {}),
    "shared weights": (alike, {"agents": {"weights": "shared"}}),
    "n-step and priorities": (
        parallel_env,
        {"replay": {**SPEC["replay"], "n_step": 2, "sampling": {"kind": "prioritized"}}},
    ),
}
FIRST = {"first_errors": False}
"""As sync has it: the largest priority so far."""


@pytest.mark.parametrize("kind", KINDS)
def test_one_actor_in_step_learns_the_bits_of_sync(kind):
    env, more = KINDS[kind]
    with Begun(env, **more) as session:
        sync = learned(session)
    for here in (True, False):
        with Begun(env, actors={"count": 1, "in_step": True, "here": here, **FIRST}, **more) as session:
            assert_same(learned(session), sync)


@pytest.mark.parametrize("kind", KINDS)
def test_two_actors_in_step_are_their_serial_twin_replays_and_all(kind):
    env, more = KINDS[kind]
    found = []
    for here in (True, False):
        with Begun(env, actors={"count": 2, "in_step": True, "here": here}, **more) as session:
            session.advance(40)
            found.append({name: np.array(array) for name, array in session.arrays().items()})
    assert_same(*found)


class CountingBy(Counting):
    """As `Counting`; its number says which process it is in, and which of its envs."""

    made = 0

    def __init__(self):
        CountingBy.made += 1
        super().__init__(number=os.getpid() * 16 + CountingBy.made)


def assert_real(run, agent):
    """Every transition of a learner is a step of its own agent in one episode, with the reward of that step."""
    items = run.learner.replay.sample(np.random.default_rng(0), (8, 64)).items
    before, after = (part.reshape(-1, 5) for part in (items.s_tm1, items.s_t))
    assert np.array_equal(before[:, [0, 1, 3]], after[:, [0, 1, 3]]), "env, episode, agent"
    assert (before[:, 3] == agent).all()
    assert np.array_equal(before[:, 2] + 1, after[:, 2])
    assert np.array_equal(after[:, 4], items.a_tm1.reshape(-1))
    expected = 100.0 * before[:, 1] + after[:, 2] + items.a_tm1.reshape(-1) / 8
    assert np.allclose(items.r_t.reshape(-1), expected)
    return {int(number) // 16 for number in before[:, 0]}


def test_each_learner_gets_its_own_agents_real_steps_and_the_gradient_steps_they_earn(in_time):
    with Begun(CountingBy, actors={"count": 2}, env={"num_envs": 5}) as session:
        session.advance(200)
        arrays, waiting = session.arrays(), session.supply.waiting
        assert session.read().env_steps == session.blocks * session.block_plan.env_steps
        for agent, (name, run) in enumerate(zip(session.names, session.runs, strict=True)):
            assert len(assert_real(run, agent)) == 2, "of both actors"
            inserted = int(arrays[f"{name}/replay/ring/inserted"])
            assert inserted < session.env_steps + waiting, "agents leave early: fewer transitions than turns"
            counted = inserted - int(arrays["team/transitions_waiting"][agent])
            before = SPEC["replay"]["start"] * counted / session.env_steps  # of the turns that earned nothing, about
            assert abs(int(session.read().updates[agent]) - 0.5 * (counted - before)) < 15
        figures = session.own_figures()
        assert figures["weights_version"] > 2
        assert len(figures["actors"]) == 2
        earned = 0.5 * SPEC["replay"]["batch_size"]
        # A parcel that came across the learning start may count or not.
        assert 0.8 * earned < figures["samples_per_insert"] < 1.03 * earned, "by each agent's own transitions"


def test_samples_of_shared_weights_are_counted_for_the_transitions_of_all_agents():
    shared = {"agents": {"weights": "shared"}, "actors": {"count": 1, "here": True}}
    with Begun(alike, **shared) as session:
        session.advance(150)
        [run] = session.runs
        assert run.inserted > 1.5 * (session.env_steps - SPEC["replay"]["start"])
        samples = int(session.read().updates[0]) * SPEC["replay"]["batch_size"]
        assert session.own_figures()["samples_per_insert"] == samples / run.inserted
        kept = {name: np.array(array) for name, array in session.arrays().items()}
    with Begun(alike, restored=kept, **shared) as session:
        assert session.own_figures()["samples_per_insert"] == samples / int(kept["team/inserted"][0])


def test_killed_actors_are_replaced(in_time):
    with Begun(CountingBy, actors={"count": 2}, env={"num_envs": 4}) as session:
        session.advance(30)
        first = set(session.supply.crew.pids())
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        session.advance(30)
        while not {pid for run in session.runs for pid in assert_real(run, session.runs.index(run))} - first:
            session.advance(10)
        assert sum(session.supply.crew.restarts_of()) == 2
        assert all("SIGKILL" in notice for notice in session.notices())


def raising():
    class Raising(CountingBy):
        def step(self, actions):
            if self.t == 1 and self.episode == 3:
                self.episode = 100  # once
                raise RuntimeError("out of luck")
            return super().step(actions)

    return Raising()


def test_an_env_that_raises_in_an_actor_is_built_anew(in_time):
    with Begun(raising, actors={"count": 1}) as session:
        while not session.own_figures()["env_failures"]:
            session.advance(10)
        session.advance(60)  # who saw it has told why by then
        assert any("out of luck" in notice for notice in session.notices())
        for agent, run in enumerate(session.runs):
            assert_real(run, agent)


@pytest.mark.parametrize("engine", ["jax", pytest.param("torch", marks=pytest.mark.heavy)])
def test_they_learn_what_is_best_for_each_and_the_run_goes_on_when_resumed(engine, tmp_path, in_time):
    mode = {"torch": {"mode": "eager"}} if engine == "torch" else {}
    spec = {**SPEC, **mode, "engine": engine, "evaluation": {"every": 1500, "episodes": 6}, "stop": {"steps": 1500}}
    spec |= {"pipeline": "processes", "actors": {"count": 1}, "log": {"every": 500, "checkpoint_every": 500}}
    run = hotloop.train(spec, env=parallel_env, out=tmp_path / "run")
    assert run.env_steps == 1500
    assert run.agent.evaluate(6)["by_agent"]["return_mean"] == list(BEST.values())
    with pytest.warns(RuntimeWarning, match=EPISODES_LOST):
        again = hotloop.resume(run, steps=1800, env=parallel_env)
    assert again.env_steps == 1800
    assert again.agent.evaluate(6)["by_agent"]["return_mean"] == list(BEST.values())


@pytest.mark.parametrize("trace", [False, True], ids=["without a trace", "with one"])
def test_a_team_is_profiled(trace, tmp_path, in_time, monkeypatch):
    monkeypatch.setattr("hotloop.profiling.trace.SECONDS", 0.2)
    monkeypatch.setattr("hotloop.profiling.process_trace.SECONDS", 0.3)
    spec = {**SPEC, "pipeline": "processes", "actors": {"count": 1}, "log": {"every": 200}, "stop": {"steps": 1000}}
    run = hotloop.profile(spec, env=parallel_env, out=tmp_path / "run", trace=trace)
    assert {"insert", "sample", "update", "wait"} <= {row["stage"] for row in run.profile["stages"]}
    if trace:
        assert run.trace == str(tmp_path / "run" / "trace" / "processes.json.gz")


def test_a_checkpoint_goes_on_with_another_number_of_actors(in_time):
    with Begun(parallel_env, actors={"count": 1}) as session:
        session.advance(60)
        kept = {name: np.array(array) for name, array in session.arrays().items()}
    with Begun(parallel_env, restored=kept, actors={"count": 3}) as other:
        assert other.said == [EPISODES_LOST]
        at = other.read()
        assert at.env_steps == int(kept["learner-0/counters/env_steps"])
        assert other.supply.waiting == int(kept["team/waiting"])
        other.advance(20)
        assert (other.read().updates > at.updates).all()
    without = {name: array for name, array in kept.items() if "/replay/" not in name}
    with Begun(parallel_env, restored=without, actors={"count": 1}) as other:
        assert len(other.said) == 2, "running episodes, and the replays"
        at = other.read()
        other.advance(10)
        assert (other.read().updates == at.updates).all(), "nothing is caught up with"


@pytest.mark.heavy
def test_treasure_is_hunted_by_actors_in_processes(in_time):
    spec = {
        **SPEC,
        "env": {"id": "treasure", "num_envs": 4, "options": {"agents": 2, "grid": 7, "frames": 1}},
        "network": {"torso": {"hidden": [32]}, "head": {"kind": "iqn", "cosines": 4, "taus": 2, "target_taus": 2}},
        "evaluation": {"every": 300, "episodes": 2},
        "stop": {"steps": 300},
    }
    run = hotloop.train(spec, out=None, pipeline="processes", **{"actors.count": 2})
    assert run.env_steps == 300
    assert run.result["updates"] > 100


def test_the_plan_names_the_actors_of_a_team():
    with Assembly(parse_spec({**SPEC, "pipeline": "processes", "actors": {"count": 2}}), Own(env=parallel_env)) as made:
        assert any("actors: 2 process(es)" in line for line in describe(made))


def test_parcels_that_do_not_fit_into_a_learners_replay_are_refused():
    small = {"replay": {**SPEC["replay"], "capacity": 100}, "agents": {"weights": "shared"}}
    refusal = r"replay.capacity is 100, but a parcel of 8 env\(s\) x 16 steps may bring 128 transitions"
    with pytest.raises(SpecError, match=refusal), Begun(alike, actors={"count": 1}, **small):
        pass


def test_an_env_that_cannot_travel_is_one_line():
    factory, _ = counting_envs()  # whose numbers come from a generator
    lock = threading.Lock()

    def locked():
        assert lock is not None
        return factory()

    with pytest.raises(SpecError, match="cannot travel to another process"), Begun(locked, actors={"count": 1}):
        pass


def test_lives_of_the_counting_env_are_unlike():
    """What the tests above rest on: agents that come late, go early, and end either way."""
    lives = {life(0, episode, agent) for episode in range(6) for agent in range(len(AGENTS))}
    assert len({comes for comes, _, _ in lives}) == 2
    assert len({goes for _, goes, _ in lives}) > 3
