"""Action masks, from the env to the learner: read, obeyed, stored and bootstrapped from as a naive twin would."""

from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting_env import LENGTHS, Counting
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from naive_snake import NaiveSnake, neighbour

from hotloop.assembly import Assembly, Own
from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.cartpole import CartPole
from hotloop.envs.device import ObsSpec, legal_actions, reset_all, step_all
from hotloop.envs.gymnasium import make_vec
from hotloop.envs.host import HostEnvs
from hotloop.envs.serial import SerialEnvs
from hotloop.envs.snake import Snake
from hotloop.errors import SpecError
from hotloop.evaluate import play
from hotloop.experience import VectorStep
from hotloop.members import seeds
from hotloop.pipelines import sync
from hotloop.pipelines.device_play import episodes_program, record
from hotloop.replay.host import HostReplay
from hotloop.runs.state import digests
from hotloop.spec import Hindsight, Replay
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

ACTIONS, ENVS = 4, 3


def allowed(number, episode, t):
    """The naive rule of the host env below; it never allows nothing, and seldom everything."""
    return [(number + 2 * episode + 3 * t + action) % 5 > 1 for action in range(ACTIONS)]


class Strict(Counting):
    """A counting env that names its legal actions, but not where an episode terminates; counts illegal ones."""

    action_space = gym.spaces.Discrete(ACTIONS, start=2)
    illegal, taken = 0, 0

    def __init__(self, number=0, kind=np.int8):
        super().__init__(number, None, False)
        self.kind = kind

    def reset(self, **how):
        obs, _ = super().reset(**how)
        return obs, self._named()

    def step(self, action):
        Strict.taken += 1
        Strict.illegal += not allowed(self.number, self.episode, self.t)[int(action) - 2]
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {} if terminated else self._named()

    def _named(self):
        legal = allowed(self.number, self.episode, self.t)
        return {"action_mask": legal if self.kind is list else np.array(legal, self.kind)}

    def get_state(self):
        return {"episode": np.int64(self.episode), "t": np.int64(self.t), "number": np.int64(self.number)}

    def set_state(self, saved):
        self.episode, self.t, self.number = (int(saved[name]) for name in ("episode", "t", "number"))


def strict_envs(mode, kind=np.int8, make=Strict):
    """Three of them, in one of Gymnasium's modes or (`serial`) in our own loop; they are masked."""
    if mode == "serial":
        numbers = iter(range(1000))
        vector = SerialEnvs(lambda: make(next(numbers) % ENVS, kind), ENVS)
    else:
        vector = SyncVectorEnv([lambda i=i: make(i, kind) for i in range(ENVS)], autoreset_mode=mode)
    envs = HostEnvs(vector)
    envs.mask_actions("Strict-v0")
    return envs


@cache
def engine_of(**more):
    spec = spec_of(**more)
    return JaxEngine(spec, jax.ShapeDtypeStruct((3,), np.float32), ACTIONS)


def spec_of(kind="epsilon_greedy", n_step=1, start=10**6, rule="double", capacity=200):
    how = {"kind": kind, "temperature": 50.0} if kind == "boltzmann" else {"kind": kind, "epsilon": 0.5}
    return parse_spec(
        {
            "env": {"id": "strict", "num_envs": ENVS, "action_mask": True},
            "updates_per_step": 1 / ENVS,
            "network": {"torso": {"hidden": [8]}},
            "exploration": how,
            "target": {"rule": rule, "every": 12},
            "replay": {"capacity": capacity, "start": start, "batch_size": 8, "n_step": n_step},
        }
    )


def session_of(mode, envs=None, **more):
    """A begun session that does not learn, unless `start` says so: nothing has to be compiled for it."""
    spec = spec_of(**more)
    session = sync.pipeline(spec, envs or strict_envs(mode), engine_of().on_host()).session(seeds([3]))
    if spec.replay.start < 10**6:
        session.compile()
    session.begin()
    return session


# -- device envs -----------------------------------------------------------------------------------------


def test_an_absolute_snake_must_not_reverse_into_its_neck():
    env, naive = Snake(grid=5, obs="basic", actions="absolute"), NaiveSnake(5, "absolute")
    step = jax.jit(
        lambda state, action, key: (lambda out: (out[0], env.action_mask(out[0]), out[3]))(env.step(state, action, key))
    )
    random, lengths, masks = np.random.default_rng(0), set(), set()
    state, _ = env.reset(jax.random.key(0))
    for t in range(300):
        naive.food = (int(state.food_x), int(state.food_y))
        mask = [bool(legal) for legal in env.action_mask(jax.device_get(state))]
        into_neck = [neighbour(naive.head, action) == naive.body[1] for action in range(4)]
        assert mask == [not bad for bad in into_neck]
        assert sum(mask) == 3
        lengths.add(len(naive.body))
        masks.add(tuple(mask))
        x, y = naive.head  # towards the food, so that it grows; else anywhere
        wish = [1 if naive.food[0] > x else 3 if naive.food[0] < x else 2 if naive.food[1] > y else 0]
        action = int(random.choice(wish if random.random() < 0.7 else range(4)))
        state, jitted, dead = step(state, jnp.int32(action), jax.random.key(t))
        naive.step(action)
        assert list(np.asarray(jitted)) == list(np.asarray(env.action_mask(jax.device_get(state))))
        if dead or naive.t >= 1000:
            state, _ = env.reset(jax.random.key(1000 + t))
            naive = NaiveSnake(5, "absolute")
    assert len(masks) == 4, "every heading was seen"
    assert max(lengths) > 5


def test_a_snake_of_one_cell_and_a_relative_one_may_do_anything():
    for env in (Snake(grid=5, obs="basic", actions="absolute", start_length=1), Snake(grid=5, obs="basic")):
        mask = env.action_mask(env.reset(jax.random.key(0))[0])
        assert mask.tolist() == [True] * env.num_actions


class Ladder(NamedTuple):
    """Climbs 1 … 3 rungs to rung 7; the rung's number mod 4 is illegal and costs 100. Even starts are truncated."""

    num_actions: int = ACTIONS
    render_fps: int = 1

    @property
    def obs_spec(self):
        return ObsSpec((2,), np.float32, np.zeros(2), np.full(2, 9))

    def reset(self, key):
        state = jnp.stack([jax.random.randint(key, (), 0, 4)] * 2)
        return state, state.astype(jnp.float32)

    def step(self, state, action, key):
        rung = state[1] + 1 + action % 3
        after = jnp.stack([state[0], rung])
        cost = jnp.where(action == state[1] % ACTIONS, -100.0, 1.0)
        over, is_cut = rung >= 7, state[0] % 2 == 0
        return after, after.astype(jnp.float32), cost, over & ~is_cut, over & is_cut, {}

    def action_mask(self, state):
        return jnp.arange(ACTIONS) != state[1] % ACTIONS

    def render(self, state):
        return int(state[1])


def of_rungs(obs_N):
    return [[action != int(rung) % ACTIONS for action in range(ACTIONS)] for _, rung in np.asarray(obs_N)]


def test_a_step_of_device_envs_carries_the_masks_of_where_it_led_and_of_where_the_next_begins():
    env = Ladder()
    state, _ = reset_all(env, jax.random.key(0), 8)
    step = jax.jit(lambda state, action, key: step_all(env, state, action, key, masked=True))
    ends = 0
    for t in range(12):
        state, after = step(state, jnp.arange(8) % ACTIONS, jax.random.key(t))
        assert np.asarray(after.legal).tolist() == of_rungs(after.obs)
        assert np.asarray(after.final_legal).tolist() == of_rungs(after.final_obs)
        assert np.asarray(legal_actions(env, state)).tolist() == of_rungs(after.obs)
        ends += int((np.asarray(after.obs) != np.asarray(after.final_obs)).any())
    assert ends > 3, "episodes ended, so the two differ"
    _, after = step_all(env, state, jnp.zeros(8, jnp.int32), jax.random.key(0))
    assert (after.legal, after.final_legal) == (None, None)


def test_a_device_env_without_masks_or_with_one_of_another_shape_is_refused_in_one_line():
    state, _ = reset_all(CartPole(), jax.random.key(0), 2)
    with pytest.raises(
        SpecError, match=r"CartPole does not name its legal actions: .*action_mask\(state\).*bool \(2,\)"
    ):
        legal_actions(CartPole(), state)

    class Short(Ladder):
        def action_mask(self, state):
            return jnp.ones(3, bool)

    state, _ = reset_all(Short(), jax.random.key(0), 2)
    with pytest.raises(SpecError, match=r"Short.action_mask\(state\) returns bool\(3,\), expected bool\(4,\)"):
        legal_actions(Short(), state)


class Stubborn:
    """Wants the one illegal action of the ladder most of all, then the others from the last on."""

    def memory(self, count):
        return ()

    def play(self, params, memory_N, obs_N, legal_NA=None):
        q_NA = jnp.where(jnp.arange(ACTIONS) == obs_N[:, 1:] % ACTIONS, 9.0, jnp.arange(ACTIONS) * 1.0)
        return memory_N, jnp.argmax(q_NA if legal_NA is None else jnp.where(legal_NA, q_NA, -jnp.inf), axis=-1)


def test_evaluations_and_recordings_on_the_device_take_legal_actions_only():
    policy: Any = Stubborn()
    for masked in (True, False):
        returns, *_ = jax.jit(episodes_program(Ladder(), policy, 16, 20, masked))(0, jax.random.key(1))
        assert (np.asarray(returns) > 0).all() == masked
        rungs = record(Ladder(), policy, jnp.int32(0), 2, 20, masked=masked)
        best = [
            rung % ACTIONS if not masked else max(a for a in range(ACTIONS) if a != rung % ACTIONS) for rung in rungs
        ]
        assert rungs[1:] == [rung + 1 + action % 3 for rung, action in zip(rungs[:-1], best[:-1], strict=True)]


@pytest.mark.parametrize(("pipeline", "n_step"), [("fused", 1), pytest.param("sync", 3, marks=pytest.mark.heavy)])
def test_a_run_on_a_device_env_takes_legal_actions_only_and_stores_their_masks(pipeline, n_step):
    spec = {
        "pipeline": pipeline,
        "env": {"num_envs": 4, "action_mask": True},
        "updates_per_step": 0.25,
        "network": {"torso": {"hidden": [8]}},
        "exploration": {"epsilon": 0.5},
        "replay": {"capacity": 400, "start": 40, "batch_size": 8, "n_step": n_step},
        "evaluation": {"every": 100, "episodes": 4},
    }
    session = Assembly(parse_spec(spec), Own(env=Ladder())).session(seeds([0]))
    session.compile()
    session.begin()
    session.advance(100)
    rows, size = session.state.replay.ring.rows, int(session.state.replay.ring.size)
    assert size == 400
    assert np.asarray(rows.legal_t).tolist() == of_rungs(rows.s_t)
    assert set(np.asarray(rows.a_tm1).tolist()) == set(range(ACTIONS))
    for action, legal in zip(np.asarray(rows.a_tm1), of_rungs(rows.s_tm1), strict=True):
        assert legal[action]
    assert (np.asarray(rows.r_t) > 0).all(), "no step cost anything"
    assert np.asarray(session.state.actor.legal).tolist() == of_rungs(session.state.actor.obs)
    assert (session.evaluate()[0].episode_return > 0).all()


# -- host envs -------------------------------------------------------------------------------------------


MODES = [*AutoresetMode, "serial"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [np.int8, bool, list])
def test_masks_of_host_envs_belong_to_the_observations_beside_them(mode, kind):
    envs, random = strict_envs(mode, kind), np.random.default_rng(0)
    obs = envs.reset(0)
    ended = 0
    for _ in range(40):
        assert envs.legal.dtype == bool
        # In NEXT_STEP the state after a terminal one is not acted in.
        over = np.array([t == LENGTHS[(episode + number) % 5] for number, episode, t in obs.astype(int)])
        for (number, episode, t), legal, is_over in zip(obs.astype(int), envs.legal, over, strict=True):
            assert is_over or legal.tolist() == allowed(number, episode, t)
        step = envs.step(random.integers(ACTIONS, size=ENVS))
        assert step.legal is envs.legal
        for i, (number, episode, t) in enumerate(step.final_obs.astype(int)):
            if step.valid[i] and not step.terminated[i]:
                assert step.final_legal[i].tolist() == allowed(number, episode, t)
        ended += int((step.terminated | step.truncated).sum())
        obs = step.obs
    assert ended > 20


def stored(session):
    ring = session.learner.replay.ring
    return ring.take(np.arange(ring.inserted - ring.size, ring.inserted))


@pytest.mark.parametrize("exploration", ["epsilon_greedy", "boltzmann"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_a_run_takes_legal_actions_only_and_stores_the_mask_it_bootstraps_from(mode, n_step, exploration):
    Strict.illegal = Strict.taken = 0
    session = session_of(mode, kind=exploration, n_step=n_step)
    session.advance(80)
    assert Strict.taken == session.env_steps > 100
    assert Strict.illegal == 0
    rows, bootstrapped, actions = stored(session), 0, set()
    assert len(rows.r_t) > 100
    for (number, episode, t), action, discount, after, legal in zip(
        rows.s_tm1.astype(int), rows.a_tm1, rows.discount_t, rows.s_t.astype(int), rows.legal_t, strict=True
    ):
        assert allowed(number, episode, t)[action]
        actions.add(int(action))
        if discount > 0:
            bootstrapped += 1
            assert tuple(after[:2]) == (number, episode)
            assert legal.tolist() == allowed(*after)
    assert bootstrapped > 40
    assert actions == set(range(ACTIONS))


def test_without_masks_the_same_envs_see_illegal_actions():
    Strict.illegal = 0
    spec = spec_of()
    plain = spec.model_copy(update={"env": spec.env.model_copy(update={"action_mask": False})})
    envs = HostEnvs(SyncVectorEnv([lambda: Strict() for _ in range(ENVS)], autoreset_mode=AutoresetMode.DISABLED))
    session = sync.pipeline(plain, envs, engine_of().on_host()).session(seeds([0]))
    session.begin()
    session.advance(40)
    assert Strict.illegal > 20
    assert stored(session).legal_t is None


LEGAL = np.array([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]], bool)
Q = np.array([[0.0, 9.0, 1.0, 2.0], [9.0, 0.0, 8.0, 7.0], [1.0, 0.0, 3.0, 2.0]], np.float32)


def counts_of(session, draws, exploration):
    explorer, random = session.actor.explorer, session.actor.random
    explorer._schedule = {"kind": "constant", "value": exploration}
    chosen = np.array([explorer.actions(lambda obs: Q.copy(), None, LEGAL, 0, random) for _ in range(draws)])
    return np.array([np.bincount(column, minlength=ACTIONS) for column in chosen.T]) / draws


def legal_shares(weights):
    """Shares of the legal actions; of all of them where none is legal."""
    shares = []
    for legal, row in zip(LEGAL, weights, strict=True):
        one = [weight if ok or not any(legal) else 0.0 for weight, ok in zip(row, legal, strict=True)]
        shares.append([weight / sum(one) for weight in one])
    return np.array(shares)


def test_random_actions_on_the_host_are_uniform_among_the_legal_ones():
    session = session_of(AutoresetMode.DISABLED)
    np.testing.assert_allclose(counts_of(session, 6000, 1.0), legal_shares(np.ones((3, 4))), atol=0.03)
    assert counts_of(session, 20, 0.0).argmax(axis=-1).tolist() == [3, 1, 2], "the best legal one"
    session.actor.explorer._is_epsilon_greedy = False
    np.testing.assert_allclose(counts_of(session, 6000, 2.0), legal_shares(np.exp(Q.astype(float) / 2)), atol=0.03)


@pytest.mark.parametrize("kind", ["epsilon_greedy", "boltzmann"])
def test_random_actions_of_the_engine_are_drawn_from_the_legal_ones(kind):
    engine = JaxEngine(spec_of(kind=kind), jax.ShapeDtypeStruct((3,), np.float32), ACTIONS)
    many, explore = 6000, 1.0 if kind == "epsilon_greedy" else 2.0
    engine.q_values = lambda params, obs_N, key=None: obs_N
    legal, q = (jnp.asarray(np.repeat(array, many, axis=0)) for array in (LEGAL, Q))
    chosen = np.asarray(engine.act(None, q, jnp.full(3 * many, explore), jax.random.key(0), legal)).reshape(3, many)
    shares = np.array([np.bincount(row, minlength=ACTIONS) for row in chosen]) / many
    weights = np.ones((3, 4)) if kind == "epsilon_greedy" else np.exp(Q.astype(float) / 2)
    np.testing.assert_allclose(shares, legal_shares(weights), atol=0.03)


# -- learning --------------------------------------------------------------------------------------------


def forward(engine, vector, obs_B):
    """Q-values by hand, in float64."""
    named = {name: np.asarray(array, np.float64) for name, array in engine.layout.to_named(vector).items()}
    x = np.asarray(obs_B, np.float64)
    x = np.maximum(x @ named["torso/layers/dense_0/kernel"] + named["torso/layers/dense_0/bias"], 0.0)
    return x @ named["head/dense_0/kernel"] + named["head/dense_0/bias"]


@pytest.mark.parametrize("rule", ["target", "double"])
def test_targets_leave_out_illegal_actions_however_large_their_q_value(rule):
    engine = JaxEngine(spec_of(rule=rule), jax.ShapeDtypeStruct((3,), np.float32), ACTIONS)
    learner = engine.init(jax.random.key(0))._replace(target=engine.init(jax.random.key(1)).params)
    random, count = np.random.default_rng(0), 8
    replay = HostReplay(Replay(capacity=count), 0.9, jax.ShapeDtypeStruct((3,), np.float32), count, None, ACTIONS)
    replay.allocate()
    before, after = (random.normal(size=(count, 3)).astype(np.float32) for _ in range(2))
    online, target = (forward(engine, vector, after) for vector in (learner.params, learner.target))
    chooser = target if rule == "target" else online
    legal = random.random((count, ACTIONS)) < 0.6
    legal[np.arange(count), chooser.argmax(axis=-1)] = False  # the largest one is always illegal
    legal[0] = False  # no legal action: all count
    legal[1] = True
    action, reward = random.integers(ACTIONS, size=count).astype(np.int32), random.normal(size=count).astype(np.float32)
    no, yes = np.zeros(count, bool), np.ones(count, bool)
    replay.begin(before)
    replay.insert(VectorStep(after, after, action, reward, no, no, yes, no, legal), random)
    batches = replay.sample(random, (1, count))
    _, td_KB, _ = jax.jit(engine.update)(learner, batches.items, jnp.float32(0.0))
    q = forward(engine, learner.params, before)
    for number, found in zip(batches.numbers[0], np.asarray(td_KB)[0], strict=True):
        among = [a for a in range(ACTIONS) if legal[number, a]] or list(range(ACTIONS))
        best = max(among, key=lambda a: chooser[number, a])
        expected = reward[number] + 0.9 * target[number, best] - q[number, action[number]]
        assert abs(found) == pytest.approx(abs(expected), rel=1e-4, abs=1e-5)


@pytest.mark.heavy
@pytest.mark.as_users_compile
def test_a_masked_run_resumes_to_the_bit():
    def session():
        return session_of("serial", envs=strict_envs("serial"), n_step=3, start=24, capacity=64)

    one = session()
    one.advance(30)
    kept = {name: np.array(array) for name, array in one.arrays().items()}
    assert kept["envs/legal"].tolist() == [allowed(*seen) for seen in kept["envs/obs"].astype(int)]
    assert kept["replay/ring/rows/legal_t"].shape == (64, ACTIONS)
    one.advance(30)
    other = session()
    other.advance(2)
    assert other.restore(kept) == []
    other.advance(30)
    assert digests(other.arrays()) == digests(one.arrays())
    assert other.read().updates[0] > 40


def test_masks_take_a_byte_per_action_and_are_counted():
    plain, masked = (
        HostReplay(Replay(capacity=100), 0.9, jax.ShapeDtypeStruct((3,), np.float32), 1, None, size)
        for size in (None, ACTIONS)
    )
    assert masked.num_bytes() - plain.num_bytes() == 100 * ACTIONS
    assert masked.row_bytes - plain.row_bytes == ACTIONS


def test_relabelled_episodes_keep_the_masks_of_their_states():
    class Judge:
        def compute_reward(self, reached, wanted, info):
            return -(reached != wanted).any(axis=-1).astype(np.float32)

    part = jax.ShapeDtypeStruct((1,), np.float32)
    shapes = dict.fromkeys(("observation", "achieved_goal", "desired_goal"), part)
    spec = Replay(capacity=50, hindsight=Hindsight(goals="final", relabelled=2))
    replay = HostReplay(spec, 0.9, shapes, 1, Judge(), ACTIONS)
    replay.allocate()

    def see(t):
        return {name: np.full((1, 1), t, np.float32) for name in shapes}

    replay.begin(see(0))
    no, yes, random = np.zeros(1, bool), np.ones(1, bool), np.random.default_rng(0)
    for t in range(1, 6):
        ends = np.array([t == 5])
        values = np.array([t % ACTIONS], np.int32), np.array([-1.0], np.float32)
        replay.insert(VectorStep(see(t), see(t), *values, ends, no, yes, ends, np.array([allowed(0, 1, t)])), random)
    rows = replay.ring.take(np.arange(15))
    assert rows.legal_t.tolist() == [allowed(0, 1, int(t)) for t in rows.s_t["observation"][:, 0]]


# -- what envs can do wrong ------------------------------------------------------------------------------


def of_env(info, space=None, mode=AutoresetMode.DISABLED, number=1):
    """Two envs whose infos are `info(t)`, masked."""

    class Told(Counting):
        action_space = space or gym.spaces.Discrete(3)

        def reset(self, **how):
            return super().reset(**how)[0], info(0)

        def step(self, action):
            obs, _, *rest, _ = super().step(0)
            return obs, 0.0, *rest, info(self.t)

    envs = HostEnvs(SyncVectorEnv([lambda: Told(number, None, False) for _ in range(2)], autoreset_mode=mode))
    envs.mask_actions("Told-v0")
    return envs


def test_missing_masks_name_the_env_and_the_key():
    with pytest.raises(SpecError, match=r"Told-v0 gave no info\['action_mask'\] in a reset \(it gave \['depth'\]\)"):
        of_env(lambda t: {"depth": 1}).reset(0)
    envs = of_env(lambda t: {} if t else {"action_mask": np.ones(3, np.int8)})
    envs.reset(0)
    with pytest.raises(SpecError, match=r"Told-v0 gave no info\['action_mask'\] in a step \(it gave nothing\)"):
        envs.step(np.zeros(2, np.int32))


def test_the_mask_before_a_truncation_must_be_in_the_final_info():
    def info(t):
        return {} if t == LENGTHS[1] else {"action_mask": np.ones(3, np.int8)}

    envs = of_env(info, mode=AutoresetMode.SAME_STEP, number=0)
    envs.reset(0)
    for _ in range(LENGTHS[0] + LENGTHS[1] - 1):  # the first episode terminates, the second is truncated
        envs.step(np.zeros(2, np.int32))
    with pytest.raises(SpecError, match=r"gave no info\['action_mask'\] in infos\['final_info'\]"):
        envs.step(np.zeros(2, np.int32))


@pytest.mark.parametrize(
    ("space", "mask", "said"),
    [
        (None, np.ones(4, np.int8), r"is int8\(4,\), expected \(3,\): one entry per action$"),
        (None, 1, r"is int64\(\), expected \(3,\)"),
        (
            gym.spaces.MultiDiscrete([2, 3]),
            (np.ones(2), np.ones(3)),
            r"is a tuple, expected \(6,\).*MultiDiscrete.*flat",
        ),
    ],
)
def test_masks_of_another_shape_are_refused_in_one_line(space, mask, said):
    with pytest.raises(SpecError, match=r"env.action_mask: info\['action_mask'\] of Told-v0 " + said):
        of_env(lambda t: {"action_mask": mask}, space).reset(0)


def test_a_flat_mask_of_many_part_actions_is_taken():
    mask = np.array([1, 0, 0, 1, 1, 0], np.int8)
    envs = of_env(lambda t: {"action_mask": mask}, gym.spaces.MultiDiscrete([2, 3]))
    envs.reset(0)
    assert envs.legal.tolist() == [mask.astype(bool).tolist()] * 2


def test_an_env_that_raised_is_masked_as_the_one_that_took_its_place():
    class Falling(Strict):
        def step(self, action):
            if (self.number, self.episode, self.t) == (1, 1, 1):
                raise RuntimeError("it fell")
            return super().step(action)

    envs = strict_envs("serial", make=Falling)
    envs.reset(0)
    fell = 0
    for _ in range(6):
        step = envs.step(np.zeros(ENVS, np.int32))
        fell += int(step.failed.sum())
        assert step.legal.tolist() == [allowed(*seen) for seen in step.obs.astype(int)]
    assert fell == 1


def test_evaluations_on_the_host_take_legal_actions_only():
    Strict.illegal = Strict.taken = 0

    def greedy(obs, legal):
        return np.argmax(np.where(legal, Q[1], -np.inf), axis=-1)

    for limit in (1000, 3):  # with the second one, episodes are cut and begun anew from outside
        assert len(play(strict_envs(AutoresetMode.DISABLED), greedy, 12, limit, 0).length) == 12
    assert Strict.taken > 40
    assert Strict.illegal == 0


def test_our_vector_env_names_the_legal_actions_of_its_states():
    vector = make_vec("snake", num_envs=4, grid=5, obs="basic", actions="absolute", max_steps=2)
    envs = HostEnvs(vector)
    envs.mask_actions("hotloop/Snake-v1")
    envs.reset(0)
    random, ended = np.random.default_rng(0), 0
    for _ in range(12):
        heading = np.asarray(vector._state.heading)
        assert envs.legal.tolist() == [[(action - at) % 4 != 2 for action in range(4)] for at in heading]
        chosen = np.argmax(random.random((4, 4)) * envs.legal, axis=-1).astype(np.int32)
        step = envs.step(chosen)
        for i in np.flatnonzero(step.truncated & ~step.terminated):  # it has just gone where it was told
            assert step.final_legal[i].tolist() == [(action - chosen[i]) % 4 != 2 for action in range(4)]
            ended += 1
    assert ended > 12
