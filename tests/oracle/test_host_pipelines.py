"""The host pipelines against each other and against fused; resumed runs; envs that raise; figures of the env's own."""

import gymnasium as gym
import jax
import numpy as np
import pytest
from counting_env import Counting, counting_envs
from gymnasium.vector import AutoresetMode
from test_host import ENVS, session_of, stored

from hotloop.assembly import Assembly
from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.host import HostEnvs
from hotloop.envs.serial import FAILURES_IN_A_ROW, SerialEnvs
from hotloop.errors import EnvFailed, SpecError
from hotloop.members import seeds
from hotloop.pipelines import concurrent, sync
from hotloop.runs.state import digests
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

SMALL = {
    "updates_per_step": 0.25,
    "network": {"torso": {"hidden": [16]}},
    "target": {"rule": "double", "every": 48},
    "replay": {"capacity": 256, "start": 32, "batch_size": 8},
    "evaluation": {"every": 0},
}
CARTPOLE, SNAKE = {"id": "cartpole"}, {"id": "snake", "options": {"grid": 6}}
OURS = "hotloop.envs.gymnasium:hotloop/CartPole-v1"


def begun(**more):
    session = Assembly(parse_spec({**SMALL, **more})).session(seeds([more.get("seed", 0)]))
    session.compile()
    session.begin()
    return session


@pytest.mark.as_users_compile
@pytest.mark.parametrize(
    ("env", "num_envs"),
    [
        (CARTPOLE, 8),
        *(pytest.param(env, count, marks=pytest.mark.heavy) for env, count in ((CARTPOLE, 1), (SNAKE, 1), (SNAKE, 8))),
    ],
)
def test_sync_on_a_device_env_ends_in_the_bits_of_fused(env, num_envs):
    ends = []
    for pipeline in ("fused", "sync"):
        session = begun(pipeline=pipeline, env={**env, "num_envs": num_envs})
        session.advance(400 // num_envs)
        ends.append(digests(session.arrays()))
    assert ends[0] == ends[1]


@pytest.mark.as_users_compile
@pytest.mark.parametrize(
    "replay",
    [
        {"sampling": {"kind": "prioritized"}, "n_step": 3, "newest_in_batch": True},
        pytest.param({}, marks=pytest.mark.heavy),
    ],
    ids=["prioritized", "uniform"],
)
@pytest.mark.parametrize("pipeline", ["sync", "concurrent"])
def test_a_run_on_an_env_that_can_be_saved_resumes_to_the_bit(pipeline, replay):
    given = {"pipeline": pipeline, "env": {"id": OURS, "num_envs": 4}, "replay": {**SMALL["replay"], **replay}}
    session = begun(**given)
    session.advance(40)
    kept = {name: np.array(array) for name, array in session.arrays().items()}
    session.advance(40)
    other = begun(**given, seed=9)
    assert other.restore(kept) == []
    other.advance(40)
    assert digests(other.arrays()) == digests(session.arrays())


@pytest.mark.as_users_compile
@pytest.mark.parametrize(
    "replay",
    [{"sampling": {"kind": "prioritized"}, "n_step": 2}, pytest.param({}, marks=pytest.mark.heavy)],
    ids=["prioritized", "uniform"],
)
def test_concurrent_is_deterministic_and_learns_one_block_later(replay):
    given = {"env": {"id": OURS, "num_envs": 4}, "replay": {**SMALL["replay"], **replay}}
    ends = []
    for pipeline in ("concurrent", "concurrent", "sync"):
        session = begun(pipeline=pipeline, **given)
        session.advance(100)
        ends.append((digests(session.arrays()), session.read().updates[0]))
    assert ends[0] == ends[1]
    assert ends[0][1] == ends[2][1] - 1


def test_concurrent_learns_from_what_was_there_when_its_block_began():
    """The first gradient step sees only transitions of the blocks before, and acts only from the next block on."""
    session = session_of(AutoresetMode.DISABLED, pipeline=concurrent)
    drawn = []
    sample = session.learner.replay.sample

    def watched(*args, **more):
        drawn.append((session.env_steps, sample(*args, **more)))
        return drawn[-1][1]

    session.learner.replay.sample = watched
    acted_with = []
    step = session.actor.step
    session.actor.step = lambda env_steps: (
        acted_with.append((session.blocks, session.actor.policy(np.ones((1, 3))))) or step(env_steps)
    )
    session.advance(12)
    steps, batches = drawn[0]
    assert steps == 12, "learning starts at 12 env steps, in the block after"
    assert batches.numbers.max() < 12
    first = acted_with[0][1]
    changed = [block for block, values in acted_with if not (values == first).all()]
    assert min(changed) == 5, "blocks 0 … 3 collect, the updates run beside block 4, block 5 acts with them"


def test_prioritised_replay_learns_from_weighted_samples_and_sets_priorities():
    replay = {"capacity": 40, "start": 12, "batch_size": 8, "sampling": {"kind": "prioritized"}}
    session = session_of(AutoresetMode.SAME_STEP, replay=replay)
    weights = []
    update = session.pipeline.update

    def watched(state, items, weight, *rest):
        weights.append(weight)
        return update(state, items, weight, *rest)

    session.learner.update = watched
    session.advance(30)
    assert weights
    assert all(weight.shape == (1, 8) and weight.max() == 1 and weight.min() > 0 for weight in weights)
    leaves = session.learner.replay.tree.leaves
    assert len(set(leaves[leaves > 0].tolist())) > 10, "priorities follow the TD errors"


def test_importance_weights_scale_the_loss_of_each_sample():
    spec = parse_spec({"network": {"torso": {"hidden": [8]}}})
    engine = JaxEngine(spec, jax.ShapeDtypeStruct((3,), np.float32), 2)
    state = jax.jit(engine.init)(jax.random.key(0))
    random = np.random.default_rng(0)
    from hotloop.experience import Item

    batch = Item(
        random.normal(size=(4, 3)).astype(np.float32),
        np.array([0, 1, 0, 1], np.int32),
        random.normal(size=4).astype(np.float32),
        np.full(4, 0.9, np.float32),
        random.normal(size=(4, 3)).astype(np.float32),
    )
    outputs = jax.jit(engine.target_outputs)(state.target, batch)
    weight = np.array([1.0, 0.0, 0.5, 0.25], np.float32)
    gradient_of = jax.jit(engine.gradient)
    gradient, loss, _, _ = gradient_of(state.params, batch, outputs, weight)
    alone = [
        gradient_of(state.params, *jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], (batch, outputs))) for i in range(4)
    ]
    np.testing.assert_allclose(gradient, sum(w * g for w, (g, *_) in zip(weight, alone, strict=True)) / 4, atol=1e-6)
    assert float(loss) == pytest.approx(float(sum(w * a[1] for w, a in zip(weight, alone, strict=True))) / 4, rel=1e-5)


class Raising(Counting):
    """Raises in chosen steps of its life; `lives` counts how often it was built."""

    lives = 0

    def __init__(self, at=(), info=False):
        super().__init__(number=Raising.lives)
        Raising.lives += 1
        self.at, self.steps, self.info = at, 0, info

    def step(self, action):
        self.steps += 1
        if self.steps in self.at:
            raise RuntimeError("out of ammunition")
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"depth": self.t} if self.info else {}


def raising_session(make, pipeline=sync, **env):
    spec = parse_spec({**SMALL, "env": {"id": "raising", "num_envs": ENVS, **env}, "updates_per_step": 1 / ENVS})
    Raising.lives = 0
    envs = HostEnvs(SerialEnvs(make, ENVS, spec.env.info), spec.env.info)
    engine = JaxEngine(spec, envs.observations.shapes, envs.actions.size)
    session = pipeline.pipeline(spec, envs, engine.on_host()).session(seeds([0]))
    session.compile()
    session.begin()
    return session


@pytest.mark.parametrize("n_step", [1, 3])
def test_an_env_that_raises_is_built_anew_and_the_others_go_on(n_step):
    session = raising_session(lambda: Raising(at=(6,) if Raising.lives == 1 else ()))
    session.learner.replay.__init__(session.spec.replay.model_copy(update={"n_step": n_step}), 0.99, *_shapes(session))
    session.begin()
    session.advance(20)
    assert (session.failures, Raising.lives) == (1, ENVS + 1)
    assert session.own_figures()["env_failures"] == 1
    rows = stored(session)
    numbers = rows.s_tm1[:, 0].astype(int)
    assert set(numbers) == {0, 1, 2, ENVS}, "the one built anew takes part"
    assert (numbers == rows.s_t[:, 0]).all(), "no transition joins the old env to the new one"
    assert (rows.s_tm1[:, 1] == rows.s_t[:, 1]).all()
    if n_step == 1:
        assert (numbers == 0).sum() == (numbers == 2).sum() == 20
        assert session.env_steps == 20 * ENVS - 1


def _shapes(session):
    return session.actor.envs.observations.shapes, session.actor.envs.num_envs


def test_an_env_that_always_raises_ends_the_run_with_its_error():
    session = raising_session(lambda: Raising(at=(1,)))
    with pytest.raises(EnvFailed, match=f"{FAILURES_IN_A_ROW} times in a row.*RuntimeError: out of ammunition"):
        session.advance(100)


def test_figures_of_the_env_are_taken_at_the_end_of_episodes():
    session = raising_session(lambda: Raising(info=True), info=["depth"])
    session.advance(30)
    figures = session.own_figures()
    read = session.read()
    assert figures["depth_mean"] == pytest.approx(read.totals.episode_length[0] / read.totals.episodes[0])
    silent = raising_session(lambda: Raising(info=False), info=["depth"])
    with pytest.raises(SpecError, match="the env gave no 'depth'"):
        silent.advance(30)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_figures_of_the_env_in_every_autoreset_mode(mode):
    class Deep(Counting):
        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, {"depth": self.t}

    vector = gym.vector.SyncVectorEnv([lambda i=i: Deep(i, None, False) for i in range(ENVS)], autoreset_mode=mode)
    envs = HostEnvs(vector, ("depth",))
    envs.reset(0)
    lengths, depths = np.zeros(ENVS), []
    for _ in range(20):
        step = envs.step(np.zeros(ENVS, np.int64))
        lengths += step.valid
        for i in np.flatnonzero(step.terminated | step.truncated):
            depths.append((lengths[i], step.info["depth"][i]))
            lengths[i] = 0
    assert len(depths) > 10
    assert all(length == depth for length, depth in depths)


def test_without_the_replay_a_resumed_run_collects_again_before_it_learns():
    given = {"env": {"id": OURS, "num_envs": 4}, "log": {"save_replay": False}}
    session = begun(**given)
    session.advance(40)
    kept = {name: np.array(array) for name, array in session.arrays().items()}
    assert not any(name.startswith("replay") for name in kept)
    other = begun(**given)
    assert any("no replay" in line for line in other.restore(kept))
    updates, steps = other.read().updates[0], other.env_steps
    while other.env_steps < steps + SMALL["replay"]["start"] - 4:
        other.advance(1)
    assert other.read().updates[0] == updates, "nothing is learned before the replay is filled again"
    other.advance(11)
    assert 9 <= other.read().updates[0] - updates <= 12, "and nothing is caught up afterwards"


@pytest.mark.heavy
@pytest.mark.as_users_compile
def test_a_run_of_envs_in_threads_or_processes_is_the_run_of_envs_one_after_the_other():
    ends = []
    for vectorization in ("sync", "threads", "async"):
        session = begun(env={"id": "Acrobot-v1", "num_envs": 2, "vectorization": vectorization})
        session.advance(60)
        ends.append({k: v for k, v in digests(session.arrays()).items() if k in ("learner", "replay", "random")})
        session.actor.envs.close()
    assert ends[0] == ends[1] == ends[2]


def test_counting_envs_are_what_the_serial_envs_see():
    """Our own loop over envs and Gymnasium's give the same steps."""
    ours = (
        HostEnvs(SerialEnvs(lambda: next(made), ENVS)) if (made := iter([Counting(i) for i in range(ENVS)])) else None
    )
    theirs = HostEnvs(counting_envs(ENVS, AutoresetMode.DISABLED))
    assert (ours.reset(0) == theirs.reset(0)).all()
    for t in range(30):
        action = np.arange(ENVS) * t % 3
        for a, b in zip(ours.step(action)[:7], theirs.step(action)[:7], strict=True):
            assert (a == b).all()


class Saved(Counting):
    """A counting env that can be saved."""

    def get_state(self):
        return {"episode": self.episode, "t": np.int64(self.t), "number": self.number}

    def set_state(self, saved):
        self.episode, self.t, self.number = (int(saved[name]) for name in ("episode", "t", "number"))


def test_the_time_limit_around_an_env_is_saved_with_it():
    def session():
        made = iter(range(100))
        return raising_session(lambda: gym.wrappers.TimeLimit(Saved(next(made) % ENVS, None, False), 5))

    one = session()
    one.advance(33)
    kept = {name: np.array(array) for name, array in one.arrays().items()}
    assert kept["envs/elapsed"].shape == (ENVS, 1)
    one.advance(20)
    other = session()
    assert other.restore(kept) == []
    other.advance(20)
    assert digests(other.arrays()) == digests(one.arrays())


def test_an_env_whose_wrapper_nobody_can_save_begins_new_episodes():
    session = raising_session(lambda: gym.wrappers.TransformReward(Saved(0, None, False), lambda reward: reward))
    session.advance(3)
    assert "envs/state/0/t" not in session.arrays()


def test_an_env_that_raises_in_its_reset_is_counted():
    class Stumbling(Counting):
        resets = 0

        def reset(self, **how):
            Stumbling.resets += 1
            if Stumbling.resets == 7:
                raise RuntimeError("it stumbled")
            return super().reset(**how)

    session = raising_session(lambda: Stumbling(0, None, False))
    session.advance(20)
    assert session.failures == 1
    assert "it stumbled" in session.notices()[0]
    assert session.notices() == []


def test_a_step_that_was_not_stored_is_not_saved_with_the_envs():
    """A checkpoint made because of it must not join the state before it to the one after."""
    session = raising_session(lambda: Saved(0, (0, 2, 1), False))
    with pytest.raises(Exception, match="not finite"):
        session.advance(30)
    kept = {name: np.array(array) for name, array in session.arrays().items()}
    assert not any(name.startswith("envs/") for name in kept)
    other = raising_session(lambda: Saved(0, None, False))
    assert other.restore(kept), "new episodes begin, and it says so"
    other.advance(5)


def test_an_evaluation_whose_envs_keep_raising_ends():
    from hotloop.evaluate import play

    envs = HostEnvs(SerialEnvs(lambda: Raising(at=(1, 3, 5, 7)), 2))
    with pytest.raises(EnvFailed):
        play(envs, lambda obs: np.zeros(2), wanted=4, limit=100, seed=0)


def test_an_endless_episode_counts_as_it_stands_and_the_next_one_begins_anew():
    from hotloop.evaluate import play

    class Endless(Counting):
        def step(self, action):
            obs, reward, *_ = super().step(action)
            return obs, reward, False, False, {}

    envs = HostEnvs(SerialEnvs(lambda: Endless(0, None, False), 2))
    played = play(envs, lambda obs: np.zeros(2), wanted=6, limit=4, seed=0)
    assert played.length.tolist() == [4] * 6
