"""Pipeline processes against its serial twin and against sync; its counts; what travels to an actor; resumed runs."""

import os
import threading
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from actor_envs import CountingBy, Masked, OneStep, OnlyHere, Pictures, Slow, Unlucky
from process_sessions import SMALL, assert_real, begun, spec_of

import hotloop
from hotloop.assembly import Assembly
from hotloop.errors import ActorsFailed, SpecError
from hotloop.experience import METRICS
from hotloop.pipelines import supply
from hotloop.pipelines.actor_loop import Place
from hotloop.pipelines.first_errors import errors_are_of_returns
from hotloop.pipelines.learning_run import EPISODES_LOST
from hotloop.progress import Silent
from hotloop.run_plan import describe
from hotloop.runs.state import digests
from hotloop.spec.reading import load_spec

BLOCKS = 60


def ended(overrides, env=None, blocks=BLOCKS):
    """All of a run's state after so many blocks."""
    with begun(overrides, env) as session:
        session.advance(blocks)
        assert session.read().updates[0] > 20
        return digests(session.arrays())


def in_processes(actors, **more):
    named = {f"actors.{name}": value for name, value in more.items()}
    return {"pipeline": "processes", "actors.count": actors, "actors.in_step": True, **named}


# -- the same bits ------------------------------------------------------------------------------------

KINDS = {
    "plain": {},
    "n-step": {"replay.n_step": 3},
    "prioritised": {"replay.sampling": {"kind": "prioritized"}},
    "pictures": {"replay.stacked_frames": 3, "replay.n_step": 2},
    # So many places that none is given up for want of frames, of which parcels bring some twice.
    "short episodes, each observation once": {
        "replay.storage": "shared",
        "replay.capacity": 6000,
        "updates_per_step": 0.0625,
    },
}


def of_kind(kind):
    """Overrides for sync and for processes, and the env."""
    first = {"actors.first_errors": False} if kind == "prioritised" else {}
    envs = {"pictures": Pictures, "short episodes, each observation once": OneStep}
    return KINDS[kind], {**KINDS[kind], **first}, envs.get(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "short episodes, each observation once",
        *(pytest.param(kind, marks=pytest.mark.heavy) for kind in ("n-step", "prioritised", "pictures")),
    ],
)
def test_one_actor_in_step_learns_the_bits_of_sync(kind):
    plain, given, env = of_kind(kind)
    sync = ended({**plain, "pipeline": "sync"}, env)
    for here in (True, False):
        found = ended({**given, **in_processes(1, here=here)}, env)
        assert {part: found[part] for part in ("learner", "counters")} == {
            part: sync[part] for part in ("learner", "counters")
        }


@pytest.mark.parametrize(
    ("kind", "num_envs"),
    [
        ("plain", 5),
        ("pictures", 4),
        *(pytest.param(kind, 5, marks=pytest.mark.heavy) for kind in ("n-step", "prioritised")),
    ],
)
def test_two_actors_in_step_are_their_serial_twin_replay_and_all(kind, num_envs):
    _, given, env = of_kind(kind)
    given = {**given, "env.num_envs": num_envs}
    assert ended({**given, **in_processes(2)}, env) == ended({**given, **in_processes(2, here=True)}, env)


def test_in_step_bits_depend_on_no_clock(monkeypatch):
    found = []
    for seconds in (0.0, 1e9):
        monkeypatch.setattr(supply, "LONGEST_UNPUBLISHED", seconds)
        found.append(ended({"replay.start": 300, **in_processes(2, here=True)}, Unlucky, blocks=200))
    assert found[0] == found[1]


def test_actors_have_streams_of_their_own_and_so_has_each_process_that_is_one():
    drawn = {
        (number, incarnation, blocks): Place(number, 2, incarnation, 0, 7, blocks, (7,)).streams()
        for number in (0, 1)
        for incarnation in (0, 1, 2)
        for blocks in (0, 50)
    }
    seeds = {seed for _, seed in drawn.values()}
    firsts = {random.random() for (random,), _ in drawn.values()}
    assert len(seeds) == len(firsts) == len(drawn)


# -- counts -------------------------------------------------------------------------------------------


def test_gradient_steps_are_those_that_the_transitions_have_earned_and_every_one_is_real():
    with begun({"pipeline": "processes", "actors.count": 2, "env.num_envs": 5}, CountingBy) as session:
        session.advance(200)
        host, block = session.read(), session.block_plan
        assert host.env_steps == 200 * block.env_steps
        learning = host.env_steps - (host.first_update_at[0] - block.env_steps)
        assert host.attempts == learning * session.spec.replay_ratio
        inserted = int(session.arrays()["replay/ring/inserted"])
        assert inserted == host.env_steps + session.own_figures()["transitions_waiting"]
        replay = session.learner.replay
        assert_real(replay.sample(np.random.default_rng(0), (8, 64)).items)


def test_before_it_waits_a_learner_publishes_its_newest_weights():
    with begun({"pipeline": "processes", "actors.count": 1}) as session:
        session.advance(BLOCKS)
        version = session.supply.version
        for _ in range(3):  # right after each other: only the first may be due
            session.act_with(session.engine.weights(session.learner.state))
        assert session.supply.version <= version + 1
        session.supply._is_published = False
        session.supply._wait()
        assert session.supply._is_published
        assert session.supply.version > version


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, True),
        ({"network.head": {"kind": "qr"}}, True),
        ({"network.head": {"kind": "c51", "low": 0.0, "high": 100.0}}, False),
        ({"target.rule": "target", "target.munchausen": {}}, False),
    ],
)
def test_actors_say_errors_where_the_learner_draws_by_the_same_ones(changes, says):
    spec = spec_of({"pipeline": "processes", "replay.sampling": {"kind": "prioritized"}, **changes})
    assert errors_are_of_returns(spec) is says


def test_figures_of_a_line_say_what_the_actors_did():
    with begun({"pipeline": "processes", "actors.count": 2, "actors.ladder": 1.0}) as session:
        session.advance(BLOCKS)
        line = session.own_figures()
        assert line["actor_restarts"] == line["parcels_dropped"] == line["env_failures"] == 0
        assert line["parcels"] > 2
        assert 0 <= line["ring_fill"] <= 1
        assert sum(line[f"actors_{work}_share"] for work in ("env", "act", "hand_over", "wait")) == pytest.approx(1)
        assert line["actors_cpu"] > 0
        assert line["learner_cpu"] > 0
        each = line["actors"]
        assert sum(one["transitions"] for one in each) == line["actors_transitions"]
        epsilon = 1 - 0.95 * min(1, session.env_steps / 400)
        assert [one["epsilon"] for one in each] == pytest.approx([epsilon, epsilon**2], abs=1e-5)


@pytest.mark.heavy
def test_actors_say_the_first_priorities():
    with begun({"pipeline": "processes", "actors.count": 1, "replay.sampling": {"kind": "prioritized"}}) as session:
        session.advance(10)
        assert session.own_figures()["first_error_mean"] > 0


# -- envs and engines ---------------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_device_env_is_stepped_in_the_actors():
    with begun({"pipeline": "processes", "actors.count": 1, "env": {"id": "cartpole", "num_envs": 4}}) as session:
        session.advance(BLOCKS)
        assert session.read().updates[0] > 20


@pytest.mark.heavy
def test_engine_torch_learns_from_actors(one_torch_thread):
    overrides = {"pipeline": "processes", "actors.count": 2, "engine": "torch", "torch.mode": "eager"}
    with begun(overrides) as session:
        session.advance(BLOCKS)
        assert session.read().updates[0] > 20
        assert np.isfinite(session.read().totals.update[0, METRICS.index("loss")])


@pytest.mark.heavy
def test_a_network_too_large_for_numpy_is_acted_with_by_the_engine():
    overrides = {"network": {"torso": {"hidden": [1024, 1024]}}, "pipeline": "processes", "actors.count": 1}
    with begun(overrides) as session:
        assert session.acts_with != "NumPy"
        session.advance(20)
        assert session.read().env_steps == 20 * session.block_plan.env_steps


def test_actors_take_legal_actions_only():
    overrides = {"pipeline": "processes", "actors.count": 2, "env.action_mask": True}
    with begun(overrides, Masked) as session:
        session.advance(BLOCKS)
        assert session.failures == 0  # an illegal one raises


def test_a_closure_travels():
    number = 3

    with begun({"pipeline": "processes", "actors.count": 1}, lambda: Pictures() if number == 3 else None) as session:
        session.advance(5)
        assert session.read().env_steps == 5 * session.block_plan.env_steps


def test_an_env_that_this_script_registered_is_known_to_the_actors():
    gym.register("Registered-v0", entry_point=lambda: CountingBy())
    try:
        with begun({"pipeline": "processes", "actors.count": 1, "env.id": "Registered-v0"}) as session:
            session.advance(5)
            assert session.read().env_steps == 5 * session.block_plan.env_steps
    finally:
        gym.registry.pop("Registered-v0")


# -- what is refused ----------------------------------------------------------------------------------


def test_a_factory_that_cannot_travel_is_refused_and_nothing_stays_open():
    lock, before = threading.Lock(), os.listdir("/proc/self/fd")

    def make():
        with lock:
            return CountingBy()

    with pytest.raises(SpecError, match=r"the function that makes envs cannot travel to another process .*lock"):
        hotloop.train(SMALL, env=make, out=None, pipeline="processes")
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1  # JAX may have opened one of its own


@pytest.mark.parametrize(
    ("overrides", "env", "said"),
    [
        ({"pipeline": "processes"}, CountingBy(), "one instance of CountingBy, which stays in this process"),
        ({"pipeline": "sync", "actors.count": 2}, None, "actors are for pipeline processes, but the pipeline is sync"),
        ({"pipeline": "processes", "actors.count": 5}, None, r"actors.count is 5, but there are 4 env\(s\)"),
        ({"pipeline": "processes", "actors.patience": 0.5}, None, "actors.patience.*1"),
        (
            {"pipeline": "processes", "replay.storage": "shared", "replay.capacity": 80, "actors.steps_per_parcel": 64},
            None,
            r"with room for \d+ frames, but a parcel of 4 env\(s\) x 64 steps may bring \d+; raise replay.capacity",
        ),
        (
            {"pipeline": "processes", "actors.count": 1, "replay.capacity": 68, "replay.n_step": 3},
            None,
            r"capacity is 68, but a parcel of 4 env\(s\) x \d+ steps may bring \d+ transitions; raise replay.capacity",
        ),
    ],
    ids=["instance", "another pipeline", "more actors than envs", "no patience", "many frames", "many transitions"],
)
def test_what_cannot_be_is_one_line(overrides, env, said):
    with pytest.raises(SpecError, match=said) as refused:
        hotloop.train(SMALL, env=env, out=None, **overrides)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_an_env_that_cannot_be_opened_in_an_actor_ends_the_run_with_its_own_words(how, tmp_path):
    make = partial(OnlyHere, os.getpid(), how)
    with pytest.raises(ActorsFailed) as failed:
        hotloop.train(SMALL, env=make, out=tmp_path / "run", pipeline="processes", **{"actors.tries": 2})
    if how == "raise":
        assert "FileNotFoundError: no such level: 7-4" in str(failed.value)
        assert "in __init__" in failed.value.words
    else:
        assert "ended with exit code 9; so it has ended 2 times in a row" in str(failed.value)
    assert not (tmp_path / "run").exists()


def test_what_will_be_taken_is_said_before():
    with Assembly(spec_of({"pipeline": "processes", "actors.count": 2, "env.num_envs": 5})) as assembly:
        *_, line = describe(assembly)
    assert line.startswith("actors: 2 process(es) of 1 thread, 3 or 2 env(s) each, parcels of 16 steps; ")
    assert "KiB of shared memory, 21 file descriptors" in line


def test_no_more_descriptors_are_open_than_was_said():
    with Assembly(spec_of({"pipeline": "processes", "actors.count": 3})) as assembly:
        session = assembly.session(assembly.spec.members)
        session.compile()
        before, said = len(os.listdir("/proc/self/fd")), assembly.pipeline.plan()["descriptors"]
        session.begin()
        while_open = len(os.listdir("/proc/self/fd")) - before
        session.close()
        assert 10 < while_open <= said
        assert len(os.listdir("/proc/self/fd")) == before


# -- whole runs ---------------------------------------------------------------------------------------


class Told(Silent):
    """Keeps what is said."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    warn = say


def test_a_run_resumes_with_all_it_had_and_says_what_is_new(tmp_path):
    spec = {**SMALL, "pipeline": "processes", "actors": {"count": 2}, "log": {"every": 200}}
    run = hotloop.train(spec, out=tmp_path / "run", **{"stop.steps": 800})
    told = Told()
    resumed = hotloop.resume(run.path, steps=1600, reporter=told)
    assert EPISODES_LOST in told.lines
    assert resumed.env_steps >= 1600
    assert resumed.updates > run.updates
    assert abs(resumed.updates_per_step - 0.25) < 1e-3
    assert hotloop.load(run.path, which="last").evaluate(2)["episodes"] == 2
    again = load_spec(run.path / "spec.yaml")
    assert (again.pipeline, again.actors.count) == ("processes", 2)


def test_actors_that_cannot_begin_again_are_not_the_checkpoints_fault(tmp_path, monkeypatch):
    spec = {**SMALL, "pipeline": "processes", "actors": {"count": 1, "here": True}}
    run = hotloop.train(spec, out=tmp_path / "run", **{"stop.steps": 100})
    refusal = SpecError("file descriptors: 3 are left, 16 are needed")

    def refused(_):
        raise refusal

    monkeypatch.setattr(supply.Supply, "begin", refused)
    with pytest.raises(SpecError) as failed:
        hotloop.resume(run.path, steps=200)
    assert failed.value is refusal


def test_a_checkpoint_of_one_actor_goes_on_with_three():
    with begun({"pipeline": "processes", "actors.count": 1}) as session:
        session.advance(BLOCKS)
        saved, before = session.arrays(), session.read()
    with begun({"pipeline": "processes", "actors.count": 3}, restored=saved) as session:
        assert session.said == [EPISODES_LOST]
        assert digests(session.arrays()) == digests(saved)
        session.advance(20)
        after = session.read()
        assert after.env_steps == before.env_steps + 20 * session.block_plan.env_steps
        assert after.attempts == before.attempts + 20 * session.block_plan.updates


def test_without_the_replay_it_collects_again_before_it_learns():
    given = {"pipeline": "processes", "actors.count": 2, "log.save_replay": False, "replay.start": 256}
    with begun(given) as session:
        session.advance(100)
        saved, before = session.arrays(), session.read()
        assert before.attempts > 0
    with begun(given, restored=saved) as session:
        assert session.said[0] == EPISODES_LOST
        assert "learning goes on after 256 env steps more" in session.said[1]
        block = session.block_plan
        session.advance(256 // block.env_steps - 1)
        assert session.read().attempts == before.attempts
        session.advance(4)
        assert session.read().attempts == before.attempts + 4 * block.updates  # and no more to catch up


@pytest.mark.heavy
def test_seeds_in_turn_each_have_actors(tmp_path):
    spec = {**SMALL, "pipeline": "processes", "actors": {"count": 2}, "seeds": 2, "log": {"every": 200}}
    run = hotloop.train(spec, out=tmp_path / "run", **{"stop.steps": 600})
    assert run.seeds == [0, 1]
    assert all((tmp_path / "run" / f"seed-{seed}" / "metrics.jsonl").is_file() for seed in (0, 1))


@pytest.mark.heavy
def test_a_run_in_processes_is_profiled(tmp_path):
    spec = {**SMALL, "pipeline": "processes", "actors": {"count": 2}, "log": {"every": 200}}
    run = hotloop.profile(spec, out=tmp_path / "run", **{"stop.steps": 2000})
    stages = {row["stage"] for row in run.profile["stages"]}
    assert {"insert", "sample", "update", "wait"} <= stages


@pytest.mark.heavy
def test_a_profile_of_slow_envs_says_that_the_actors_hold_the_run_back(tmp_path):
    spec = {**SMALL, "pipeline": "processes", "actors": {"count": 1, "steps_per_parcel": 4}, "log": {"every": 40}}
    run = hotloop.profile(spec, env=Slow, out=tmp_path / "run", **{"stop.steps": 400})
    assert run.profile["says"][0].startswith("actors spend their time on: env ")
    assert "the actors are what holds this run back" in run.profile["says"][0]
