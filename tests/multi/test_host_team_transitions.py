"""What the learners of a team store on the host are real steps of their own agents, against a naive twin."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from parallel_envs import AGENTS, counting_envs

from hotloop.assembly import Assembly, Own
from hotloop.envs.parallel import ParallelTeam
from hotloop.envs.serial import FAILURES_IN_A_ROW
from hotloop.errors import EnvFailed, NotFinite
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

GAMMA = 0.5
SPEC = {
    "discount": GAMMA,
    "updates_per_step": 0.5,
    "network": {"torso": {"hidden": [8]}},
    "exploration": {"epsilon": 0.5},
    "replay": {"capacity": 4096, "start": 12, "batch_size": 8},
    "evaluation": {"every": 0},
}


def begun(factory, **more):
    """A begun session of three agents in two envs."""
    spec = parse_spec({**SPEC, "env": {"num_envs": 2}, **more})
    session = Assembly(spec, Own(env=factory)).session(parse_spec({}).members)
    session.compile()
    session.begin()
    return session


def naive(log, n_step):
    """The transitions that n-step returns make of a log of steps, by agent, in the plainest way."""
    lives, found = defaultdict(list), defaultdict(Counter)
    for step in log:
        number, episode, _, agent, _ = step[0]
        lives[number, episode, agent].append(step)
    for (_, _, agent), steps in lives.items():
        *_, terminated, truncated = steps[-1]
        for first in range(len(steps)):
            last = first + n_step
            if last > len(steps) and not (terminated or truncated):
                continue  # still running, or lost with its env
            window = steps[first:last]
            reward = sum(GAMMA**k * step[2] for k, step in enumerate(window))
            discount = GAMMA ** len(window) * (not window[-1][4])
            found[int(agent)][row(window[0][0], window[0][1], reward, discount, window[-1][3])] += 1
    return found


def row(before, action, reward, discount, after):
    return (
        tuple(float(x) for x in before),
        int(action),
        float(reward),
        float(discount),
        tuple(float(x) for x in after),
    )


def stored(run):
    """All that a learner can draw."""
    replay = run.learner.replay
    rows = replay.ring.take(np.arange(replay.ring.inserted - replay.ring.size, replay.ring.inserted))
    before, after = replay.store.take(rows.s_tm1), replay.store.take(rows.s_t)
    return Counter(row(*each) for each in zip(before, rows.a_tm1, rows.r_t, rows.discount_t, after, strict=True))


@pytest.mark.parametrize("storage", ["whole", "shared"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_each_learner_stores_the_steps_of_its_agent_and_all_of_them(n_step, storage):
    factory, log = counting_envs()
    session = begun(factory, replay={**SPEC["replay"], "n_step": n_step, "storage": storage})
    session.advance(150)
    expected = naive(log, n_step)
    assert len({row for agent in expected.values() for row in agent}) > 200
    for agent, run in enumerate(session.runs):
        assert stored(run) == expected[agent]
    assert session.read().env_steps == 300 == len({(*step[0][:3],) for step in log}), "an env step is a turn"
    assert session.read().updates.min() > 20


@pytest.mark.parametrize("n_step", [1, 3])
def test_with_shared_weights_one_learner_stores_the_steps_of_all(n_step):
    factory, log = counting_envs()
    shared = {"agents": {"weights": "shared"}, "replay": {**SPEC["replay"], "n_step": n_step}}
    session = begun(factory, **shared)
    session.advance(60)
    [run] = session.runs
    assert stored(run) == sum(naive(log, n_step).values(), Counter())
    assert session.read().env_steps == 120
    assert session.read().updates[0] == (120 - 12) // 2 + 1, "a turn earns as much as an env step of one agent"
    assert run.learner.limiter.owed == 0


@pytest.mark.parametrize("n_step", [1, 3])
def test_an_env_that_raises_is_built_anew_and_loses_what_was_running_in_it(n_step):
    factory, log = counting_envs(raises=(1, 2, 2))
    session = begun(factory, replay={**SPEC["replay"], "n_step": n_step})
    session.advance(60)
    expected = naive(log, n_step)
    assert {int(step[0][0]) for step in log} == {0, 1, 2}, "the third stands in for the second"
    for agent, run in enumerate(session.runs):
        assert stored(run) == expected[agent]
    assert session.own_figures()["env_failures"] == 1
    assert "once; the last time with RuntimeError: out of luck" in session.notices()[0]
    assert session.notices() == []
    assert session.read().env_steps == 119, "the turn that failed is none"


def test_an_env_that_always_raises_ends_the_run():
    factory, _ = counting_envs()

    def broken():
        env = factory()
        env.raises = (env.number, 0, 1)
        return env

    session = begun(broken)
    with pytest.raises(EnvFailed, match=f"env 0 failed {FAILURES_IN_A_ROW} times in a row.*out of luck"):
        session.advance(30)


def test_a_reward_that_is_not_finite_is_refused_with_the_agents_name():
    factory, _ = counting_envs(spoils=(1, 1, 2, "ann"))
    session = begun(factory)
    with pytest.raises(NotFinite, match="env 1 gave ann a reward that is not finite"):
        session.advance(100)


def _watched(wrong):
    """Envs of which each is made wrong by a function."""
    factory, _ = counting_envs()

    def made():
        env = factory()
        wrong(env)
        return env

    return ParallelTeam(made, 1)


def _spoil_observation(env):
    env._observe = lambda name, action: np.full(5, np.inf)


def _lose_an_agent(env):
    step = env.step

    def losing(actions):
        given = step(actions)
        env.agents = []
        return given

    env.step = losing


def _unknown(env):
    env.possible_agents = ["ann", "bob"]


def _misfit(env):
    env._observe = lambda name, action: np.zeros(4)


def _silent(env):
    step = env.step
    env.step = lambda actions: (step(actions)[0], {}, {}, {}, {})


def _wordy(env):
    step = env.step

    def wordy(actions):
        obs, rewards, *rest = step(actions)
        return obs, dict.fromkeys(rewards, "plenty"), *rest

    env.step = wordy


@pytest.mark.parametrize(
    ("wrong", "kind", "line"),
    [
        (_spoil_observation, NotFinite, "env 0 gave .* an observation that is not finite"),
        (_lose_an_agent, EnvFailed, "has ann no more among its agents, which it neither terminated nor truncated"),
        (_unknown, EnvFailed, "has an agent 'cid', which its possible_agents do not name"),
        (_misfit, EnvFailed, r"agent .* gave an observation of shape \(4,\), its space says \(5,\)"),
        (_wordy, EnvFailed, "env 0 gave ann a reward that is plenty, expected a number"),
        (_silent, EnvFailed, "gave no reward of .*, which had acted"),
    ],
)
def test_what_an_env_does_wrong_is_said_with_the_agents_name(wrong, kind, line):
    with pytest.raises(kind, match=line):
        _play(_watched(wrong))


def _play(envs):
    envs.reset(0)
    for _ in range(5):
        envs.step([np.zeros(1, np.int32)] * len(envs.spaces.names))


def test_metrics_count_the_episodes_of_each_agent_with_its_own_lengths():
    factory, log = counting_envs()
    session = begun(factory)
    session.advance(100)
    totals = session.read().totals
    for agent in range(len(AGENTS)):
        ended = [step for step in log if step[0][3] == agent and (step[4] or step[5])]
        assert totals.episodes[agent] == len(ended)
    resets = sum(game.env.episode for game in session.envs._games)
    assert session.read().episodes.tolist() == [resets] * 3, "an episode is over when it is for all"
