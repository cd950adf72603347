"""Learning in turns: SLM-Lab's loop, frame by frame, written from its rules in plain Python, and what a run does."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

import hotloop
from hotloop.assembly import Assembly
from hotloop.errors import SpecError
from hotloop.learning import schedules
from hotloop.pipelines.host_run import HostRun
from hotloop.replay.host import HostReplay
from hotloop.spec.reading import load_spec, parse_spec, to_yaml
from hotloop.trial import begun

RULES: dict[str, Any] = {
    "training_frequency": 4,
    "training_start_step": 32,
    "training_iter": 2,
    "training_batch_iter": 3,
    "max_size": 100,
    "update_frequency": 30,
    "explore": (1.0, 0.1, 20, 150),
    "lr": (0.02, 10, 0.9),
    "batch_size": 4,
}


class Frame(NamedTuple):
    """What holds after one vector step, the ε that it acted with, and the learning rate of its last turn."""

    frame: int
    gradient_steps: int
    copies: int
    epsilon: float
    rate: float


def loop(rules: dict[str, Any], num_envs: int, vector_steps: int) -> list[Frame]:
    """The control loop of SLM-Lab, without an env and a network."""
    head, seen, to_train, frame = -1, 0, False, 0
    gradient_steps = copies = scheduler_steps = 0
    start, end, first, last = rules["explore"]
    rate, step_size, gamma = rules["lr"]
    epsilon, used, frames = start, math.nan, []
    for _ in range(vector_steps):
        acted_with = epsilon
        frame += num_envs  # the clock ticks in env.step
        for _ in range(num_envs):  # memory.update, an experience at a time
            head = (head + 1) % rules["max_size"]
            seen += 1
            to_train = to_train or (seen > rules["training_start_step"] and head % rules["training_frequency"] == 0)
        if to_train:  # algorithm.train
            gradient_steps += rules["training_iter"] * rules["training_batch_iter"]
            used = rate * gamma ** (scheduler_steps // step_size)
            scheduler_steps += 1
            to_train = False
        if frame % rules["update_frequency"] < num_envs:  # algorithm.update
            copies += 1
        epsilon = start if frame < first else max((end - start) / (last - first) * (frame - first) + start, end)
        frames.append(Frame(frame, gradient_steps, copies, acted_with, used))
    return frames


def spec_of(rules: dict[str, Any], num_envs: int, **more: Any) -> dict[str, Any]:
    start, end, first, last = rules["explore"]
    rate, step_size, gamma = rules["lr"]
    epsilon = {"kind": "slm_lab", "decay": "linear", "start": start, "end": end, "after": first, "until": last}
    updates = rules["training_iter"] * rules["training_batch_iter"]
    return {
        "env": {"id": "CartPole-v1", "num_envs": num_envs, "vectorization": "sync"},
        "turns": {"every": rules["training_frequency"], "updates": updates},
        "network": {"torso": {"hidden": [4]}},
        "target": {"rule": "double", "every": rules["update_frequency"]},
        "optimizer": {
            "learning_rate": {"kind": "step", "start": rate, "rate": gamma, "every": step_size},
            "schedule_in": "turns",
        },
        "exploration": {"epsilon": epsilon, "together": True},
        "replay": {
            "capacity": rules["max_size"],
            "start": rules["training_start_step"],
            "batch_size": rules["batch_size"],
            "updates_per_batch": rules["training_batch_iter"],
            "newest_in_batch": "all",
        },
        **more,
    }


def watched(spec: dict[str, Any], vector_steps: int, monkeypatch: pytest.MonkeyPatch) -> list[Frame]:
    """What a real run does, seen from outside: its calls to the engine and the ε of its actions."""
    copies, rates, epsilons = [0], [math.nan], [math.nan]
    value_at = schedules.value_at

    def noted(step: Any, **fields: Any) -> Any:
        value = value_at(step, **fields)
        if fields["kind"] == "slm_lab":
            epsilons[0] = value
        return value

    monkeypatch.setattr(schedules, "value_at", noted)
    frames: list[Frame] = []
    with Assembly(parse_spec(spec)) as assembly:
        run = begun(assembly)
        assert isinstance(run, HostRun)
        engine = run.engine
        update, move = run.learner.update, engine.move_target

        def counted_update(state: Any, items: Any, weight: Any, rate: float, moves: int, draws: Any) -> Any:
            copies[0] += moves
            rates[0] = rate
            return update(state, items, weight, rate, moves, draws)

        def counted_move(state: Any, times: int) -> Any:
            copies[0] += times
            return move(state, times)

        monkeypatch.setattr(run.learner, "update", counted_update)
        monkeypatch.setattr(engine, "move_target", counted_move)
        for _ in range(vector_steps):
            run.advance(1)
            steps = int(run.read().updates[0])
            frames.append(Frame(run.env_steps, steps, copies[0], epsilons[0], rates[0]))
    return frames


@pytest.mark.parametrize("frequency", [1, 4, 10])
@pytest.mark.parametrize("num_envs", [1, 4, 8])
def test_every_frame_is_that_of_the_loop(frequency: int, num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {**RULES, "training_frequency": frequency, "max_size": 103}  # which no frequency divides
    vector_steps = 240 // num_envs
    expected = loop(rules, num_envs, vector_steps)
    found = watched(spec_of(rules, num_envs), vector_steps, monkeypatch)
    assert expected[-1].gradient_steps > 100
    assert expected[-1].copies > 4
    for one, other in zip(found, expected, strict=True):
        assert one._replace(epsilon=0, rate=0) == other._replace(epsilon=0, rate=0)
        np.testing.assert_allclose(one[-2:], other[-2:], rtol=1e-12, err_msg=str(other))
    assert found[-1].rate < rules["lr"][0]


def test_a_target_period_shorter_than_a_vector_step_moves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {**RULES, "update_frequency": 3}
    found = watched(spec_of(rules, 8), 12, monkeypatch)
    assert [frame.copies for frame in found] == list(range(1, 13)) == [one.copies for one in loop(rules, 8, 12)]


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_weights_follow_the_target_net_between_turns(engine: str) -> None:
    """A copy between two turns takes the weights of the turn before it, not of the one after."""
    rules = {**RULES, "update_frequency": 38}  # frame 38: turns are at 33, 37, 41
    with Assembly(parse_spec(spec_of(rules, 1, engine=engine, stop={"steps": 100}))) as assembly:
        run = begun(assembly)
        assert isinstance(run, HostRun)
        run.advance(37)
        after_turn = np.asarray(run.engine.give(run.learner.state).params).copy()  # type: ignore[attr-defined]
        run.advance(1)
        state: Any = run.engine.give(run.learner.state)
        np.testing.assert_array_equal(np.asarray(state.target), after_turn)
        run.advance(3)
        state = run.engine.give(run.learner.state)
        np.testing.assert_array_equal(np.asarray(state.target), after_turn)
        assert not np.array_equal(np.asarray(state.params), after_turn)


DECAYS = ("linear", "rate", "periodic")


def slm_lab_value(decay: str, start: float, end: float, first: int, last: int, step: int) -> float:
    if step < first:
        return start
    if decay == "linear":
        return max((end - start) / (last - first) * (step - first) + start, end)
    if step >= last:
        return end
    if decay == "rate":
        return max(0.9 ** ((step - first) / ((last - first) / 20.0)) * start, end)
    x = (step - first) / ((last - first) / 60.0)
    return max(end * 0.5 * (start - end) * (1 + math.cos(x) * (1 - x / 60.0)), end)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("start", "end"), [(1.0, 0.1), (5.0, 0.5)])
def test_decays_are_those_of_slm_lab(decay: str, start: float, end: float) -> None:
    import jax.numpy as jnp

    steps = np.arange(0, 400)
    expected = [slm_lab_value(decay, start, end, 30, 300, step) for step in steps]
    fields = {"kind": "slm_lab", "decay": decay, "start": start, "end": end, "after": 30, "until": 300}
    assert len(set(expected)) > (2 if (decay, end) == ("periodic", 0.1) else 100) or decay == "periodic"
    found = [schedules.value_at(int(step), xp=schedules.Scalars, **fields) for step in steps]  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    on_device = schedules.value_at(jnp.asarray(steps, jnp.float32), xp=jnp, **fields)  # type: ignore[arg-type]
    np.testing.assert_allclose(on_device, expected, rtol=1e-5, atol=1e-6)


def replay_of(**more: Any) -> HostReplay:
    from hotloop.trees import ArraySpec

    replay = parse_spec(
        {"replay": {"capacity": 50, "start": 1, "batch_size": 4, "newest_in_batch": "all", **more}}
    ).replay
    made = HostReplay(replay, 0.9, ArraySpec((1,), np.float32), 2)
    made.allocate()
    made.begin(np.zeros((2, 1), np.float32))
    return made


def insert(replay: HostReplay, vector_steps: int) -> None:
    from hotloop.experience import VectorStep

    no, yes = np.zeros(2, bool), np.ones(2, bool)
    seen = np.zeros((2, 1), np.float32)
    for _ in range(vector_steps):
        fields = {"obs": seen, "final_obs": seen, "action": np.zeros(2, np.int32), "reward": np.zeros(2, np.float32)}
        fields |= {"terminated": no, "truncated": no, "valid": yes, "began": no, "failed": no, "info": {}}
        known = {name: fields[name] for name in VectorStep._fields if name in fields}
        replay.insert(VectorStep(**known), np.random.default_rng(0))


def test_all_that_came_since_the_last_draw_ends_the_next_batches() -> None:
    replay, random = replay_of(), np.random.default_rng(0)
    insert(replay, 1)
    assert list(replay.sample(random, (2, 4)).numbers[0, 2:]) == [0, 1]
    insert(replay, 3)  # six: one batch and a half
    numbers = replay.sample(random, (1, 4)).numbers
    assert list(numbers[0]) == [2, 3, 4, 5]
    assert list(replay.sample(random, (1, 4)).numbers[0, 2:]) == [6, 7]
    drawn = {tuple(replay.sample(random, (1, 4)).numbers[0]) for _ in range(20)}
    assert len(drawn) > 10, "by chance again"
    insert(replay, 40)  # more than the ring holds
    assert list(replay.sample(random, (1, 4)).numbers[0]) == [38, 39, 40, 41]


def test_a_new_transition_has_the_priority_of_its_first_error() -> None:
    sampling = {"kind": "prioritized", "alpha": 0.5, "epsilon": 0.25, "first_error": 100.0}
    replay = replay_of(sampling=sampling, newest_in_batch=False)
    insert(replay, 2)
    np.testing.assert_allclose(replay.tree.leaves[:4], 100.25**0.5)
    batches = replay.sample(np.random.default_rng(0), (1, 4))
    replay.learned(batches, np.full((1, 4), 1000.0))
    insert(replay, 1)
    np.testing.assert_allclose(replay.tree.leaves[4:6], 100.25**0.5, err_msg="whatever was seen since")


def test_envs_that_explore_together_do_so_in_the_same_vector_steps() -> None:
    from hotloop.pipelines.explorer import Explorer

    best = np.zeros((64, 50))
    best[:, 0] = 1.0
    for together in (True, False):
        spec = parse_spec({"exploration": {"epsilon": 0.5, "together": together}, "env": {"id": "CartPole-v1"}})
        explorer, random = Explorer(spec, None), np.random.default_rng(0)
        explored = [
            float(np.mean(explorer.actions(lambda obs, draws=None: best, None, None, 0, random) > 0)) for _ in range(20)
        ]
        assert all(share < 0.05 or share > 0.85 for share in explored) == together
        assert 0.2 < np.mean(explored) < 0.8


def test_a_run_in_turns_is_resumed_to_the_same_bits(tmp_path: Any) -> None:
    rules = {**RULES, "training_frequency": 10}
    spec = spec_of(rules, 4, engine="torch", torch={"mode": "eager"}, evaluation={"every": 0}, stop={"steps": 240})
    spec["env"] = {"id": "cartpole", "num_envs": 4}  # which can be saved
    spec["replay"] |= {"sampling": {"kind": "prioritized", "updates_per_draw": 3, "first_error": 10.0}}
    whole = hotloop.train(spec, out=tmp_path / "whole")
    half = hotloop.train(spec, out=tmp_path / "half", **{"stop.steps": 136})
    resumed = hotloop.resume(half, steps=240)
    assert whole.updates == resumed.updates > 50
    named = [hotloop.load(run, which="last") for run in (whole, resumed)]
    first, second = (agent.engine.to_named(agent.weights) for agent in named)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_what_turns_do_not_go_with_is_refused() -> None:
    turns = {"turns": {"every": 4, "updates": 2}}
    for fields, said in (
        ({**turns, "updates_per_step": 0.5}, "turns say how much is learned"),
        ({**turns, "learn_every": 16}, "turns say when it is learned"),
        ({**turns, "pipeline": "concurrent"}, "pipeline is sync, not concurrent"),
        ({**turns, "replay": {"n_step": 3}}, "places of single steps"),
        ({**turns, "replay": {"hindsight": {}}}, "places of single steps"),
        ({"optimizer": {"schedule_in": "turns"}}, "but there are none"),
        ({**turns, "replay": {"updates_per_batch": 3}}, "but a block has 2 gradient"),
    ):
        with pytest.raises(SpecError, match=said):
            parse_spec({"env": {"id": "CartPole-v1"}, **fields})
    with pytest.raises(SpecError, match="turns is not for device envs"):
        hotloop.train(turns, out=None)


def test_a_spec_in_turns_is_written_and_read_again() -> None:
    spec = parse_spec(spec_of(RULES, 4))
    again = load_spec(yaml.safe_load(to_yaml(spec)))
    assert again.turns == spec.turns
    assert again.block_plan == spec.block_plan == (4, 1, 6)
    assert again.replay_ratio == 1.5
