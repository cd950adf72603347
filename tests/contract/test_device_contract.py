"""A device env of one's own that breaks the contract is told so in a line, before anything is compiled or written."""

from collections import namedtuple
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotloop
from hotloop import registry
from hotloop.envs import device_contract
from hotloop.envs.cartpole import CartPole
from hotloop.envs.device import ObsSpec
from hotloop.envs.device_contract import require_contract
from hotloop.errors import EnvFailed, SpecError

SPEC: dict[str, Any] = {
    "env": {"num_envs": 2},
    "replay": {"capacity": 64, "start": 8, "batch_size": 4},
    "evaluation": {"every": 0},
    "stop": {"steps": 16},
}
NUMBERS = ObsSpec((2,), np.float32, -1.0, 1.0)


class Sound:
    """Counts to five; each way of being wrong is a class below."""

    num_actions: Any = 2
    obs_spec: Any = NUMBERS

    def reset(self, key: jax.Array) -> Any:
        return {"t": jnp.int32(0)}, self.seen()

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Any:
        t = state["t"] + 1
        return {"t": t}, self.seen(), jnp.float32(1.0), t >= 5, jnp.bool_(False), {}

    def seen(self) -> Any:
        return jnp.zeros(2, jnp.float32)


def stepping(**changes: Any) -> Any:
    """An env whose step gives something else: `changes` are functions of what it should give."""
    names = ("state", "obs", "reward", "terminated", "truncated", "info")

    class Wrong(Sound):
        def step(self, state: Any, action: jax.Array, key: jax.Array) -> Any:
            made = dict(zip(names, super().step(state, action, key), strict=True))
            return tuple(changes[name](made[name]) if name in changes else made[name] for name in names)

    return Wrong


def with_(**members: Any) -> Any:
    return type("Wrong", (Sound,), members)


Pair = namedtuple("Pair", "a b")
WRONG = {
    "no actions": (with_(num_actions=0), "Wrong.num_actions is 0, expected a whole number of 1 or more"),
    "actions that are no number": (with_(num_actions="two"), "Wrong.num_actions is two, expected a whole number"),
    "a fraction of actions": (with_(num_actions=2.0), "Wrong.num_actions is 2.0, expected"),
    "a true number of actions": (with_(num_actions=True), "Wrong.num_actions is True, expected"),
    "no obs_spec": (with_(obs_spec=(2,)), "Wrong.obs_spec has a int, expected an ObsSpec(shape, dtype, low, high)"),
    "a shape that is none": (with_(obs_spec=NUMBERS._replace(shape=2)), "Wrong.obs_spec cannot be traced by JAX: Type"),
    "a reset that raises": (with_(reset=lambda self, key: 1 / 0), "Wrong.reset cannot be traced by JAX: ZeroDivision"),
    "a reset without a key": (with_(reset=lambda self: None), "Wrong.reset cannot be traced by JAX: TypeError: "),
    "a reset without a state": (with_(reset=lambda self, key: self.seen()), "Wrong.reset returns one ShapeDtypeStruct"),
    "a reset of three": (
        with_(reset=lambda self, key: (0, self.seen(), {})),
        "returns 3 results, expected 2: state, obs",
    ),
    "an observation of text": (with_(seen=lambda self: "here"), "Wrong.reset cannot be traced by JAX: TypeError"),
    "another shape": (
        with_(seen=lambda self: jnp.zeros(3)),
        "env: Wrong.reset gives an observation of float32(3,), but obs_spec says float32(2,); make them agree",
    ),
    "another dtype": (
        with_(seen=lambda self: jnp.zeros(2, jnp.int32)),
        "observation of int32(2,), but obs_spec says float",
    ),
    "another form": (
        with_(obs_spec={"a": NUMBERS, "b": NUMBERS}),
        "an observation of float32(2,), but obs_spec says {a: float32(2,), b: float32(2,)}",
    ),
    "a part too few": (
        with_(obs_spec={"a": NUMBERS, "b": NUMBERS}, seen=lambda self: {"a": jnp.zeros(2)}),
        "an observation of {a: float32(2,)}, but obs_spec says {a: float32(2,), b: float32(2,)}",
    ),
    "another kind of tuple": (
        with_(obs_spec=(NUMBERS, NUMBERS), seen=lambda self: Pair(jnp.zeros(2), jnp.zeros(2))),
        "an observation of Pair(a=float32(2,), b=float32(2,)), but obs_spec says (float32(2,), float32(2,))",
    ),
    "another shape in a step": (stepping(obs=lambda obs: obs[:1]), "Wrong.step gives an observation of float32(1,)"),
    "another dtype in a step": (
        stepping(obs=lambda obs: obs.astype(jnp.uint8)),
        "Wrong.step gives an observation of uint8",
    ),
    "five results": (
        with_(step=lambda self, state, action, key: (state, self.seen(), 0.0, False, {})),
        "env: Wrong.step returns 5 results, expected 6: state, obs, reward, terminated, truncated, info",
    ),
    "nothing": (with_(step=lambda self, state, action, key: None), "Wrong.step returns one NoneType, expected 6"),
    "an if on an array": (
        with_(step=lambda self, state, action, key: 1 if action else 0),
        "Wrong.step cannot be traced by JAX: TracerBoolConversionError: Attempted boolean conversion",
    ),
    "a state of another dtype": (
        stepping(state=lambda state: {"t": state["t"] * 0.5}),
        "the state['t'] of Wrong is int32() after reset and float32() after step, expected the same form",
    ),
    "a state of another shape": (
        stepping(state=lambda state: {"t": state["t"][None]}),
        "int32() after reset and int32(1,)",
    ),
    "a state of another form": (
        stepping(state=lambda state: (state["t"],)),
        "the state of Wrong is {t: int32()} after reset and (int32(),) after step",
    ),
    "a state that grows": (stepping(state=lambda state: {**state, "u": 0}), "and {t: int32(), u: int32()} after step"),
    "several rewards": (
        stepping(reward=lambda reward: reward[None]),
        "gives a reward of float32(1,), expected one number",
    ),
    "no reward": (stepping(reward=lambda reward: None), "gives a reward of None, expected one number"),
    "terminated as a number": (stepping(terminated=jnp.int32), "gives terminated as int32(), expected one truth value"),
    "truncated as a number": (
        stepping(truncated=jnp.float32),
        "gives truncated as float32(), expected one truth value",
    ),
    "several endings": (stepping(terminated=lambda flag: flag[None]), "gives terminated as bool(1,), expected"),
    "no info": (stepping(info=lambda info: None), "gives info as NoneType, expected a dict"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_env_that_breaks_the_contract_is_told_so_in_a_line(wrong):
    make, said = WRONG[wrong]
    with pytest.raises(SpecError) as caught:
        require_contract(make())
    assert said in str(caught.value)
    assert str(caught.value).startswith("env: ")
    assert "\n" not in str(caught.value)


SOUND = {
    "as it should be": Sound,
    "numbers of Python": stepping(reward=lambda reward: 1, truncated=lambda flag: False),
    "whole rewards": stepping(reward=lambda reward: jnp.int32(1)),
    "float64 that JAX has not": with_(obs_spec=NUMBERS._replace(dtype=np.float64)),
    "a number of NumPy's": with_(num_actions=np.int64(2)),
    "parts": with_(obs_spec={"b": NUMBERS, "a": NUMBERS}, seen=lambda self: {"a": jnp.zeros(2), "b": jnp.zeros(2)}),
    "a weak number in the state": with_(reset=lambda self, key: ({"t": 0}, self.seen())),
    "a list of results": with_(step=lambda self, *inputs: list(Sound.step(self, *inputs))),
}


@pytest.mark.less_optimised
@pytest.mark.parametrize("sound", SOUND)
def test_an_env_that_keeps_it_is_trained_on(sound):
    require_contract(SOUND[sound]())
    marginal = sound in ("numbers of Python", "a weak number in the state")
    if sound == "as it should be" or marginal:  # what is accepted works
        assert hotloop.train(SPEC, device_env=SOUND[sound](), out=None).env_steps == 16


def test_ours_are_not_asked(monkeypatch):
    monkeypatch.setattr(device_contract, "_declared", None)
    require_contract(CartPole())


@pytest.fixture
def theirs(monkeypatch):
    monkeypatch.setattr(registry, "ENVS", dict(registry.ENVS))
    hotloop.register_env("theirs", hotloop.Entry(f"{__name__}:Grows", "of a plug-in"))


Grows = WRONG["a state that grows"][0]


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("spec", "given"),
    [
        ({}, {"device_env": Grows()}),
        ({}, {"env": Grows}),
        ({"env": {"id": "theirs"}}, {}),
        ({"engine": "torch"}, {"env": Grows()}),
        ({"engine": "torch", "env": {"id": "theirs"}}, {}),
        ({"engine": "torch", "env": {"id": "theirs", "vectorization": "sync"}}, {}),
    ],
)
def test_it_is_said_wherever_such_an_env_comes_from_and_nothing_is_written(tmp_path, spec, given):
    with pytest.raises(SpecError, match=r"^env: the state of Wrong is .* after reset and .* after step"):
        hotloop.train({**SPEC, **spec}, out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


# -- Gymnasium envs ---------------------------------------------------------------------------------------


class Shapes(gym.Env):
    """Gives observations of another form than it says: from the first reset on, or later."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, gives: Any = (3,), says: str = "box", from_step: int = 0) -> None:
        box = gym.spaces.Box(-1, 1, (2,))
        pair = {"a": box, "b": gym.spaces.Discrete(3)}
        self.observation_space = {"box": box, "dict": gym.spaces.Dict(pair), "tuple": gym.spaces.Tuple(pair.values())}[
            says
        ]
        self.says, self.gives, self.from_step, self.steps = says, gives, from_step, 0

    def _seen(self) -> Any:
        is_wrong = self.steps >= self.from_step
        seen = np.zeros(tuple(self.gives) if is_wrong and not isinstance(self.gives, str) else 2, np.float32)
        if self.says == "box":
            return seen
        parts = {"a": seen, "b": 1}
        if is_wrong and self.gives == "too few":
            del parts["b"]
        return parts if self.says == "dict" else tuple(parts.values())

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._seen(), 1.0, self.steps % 5 == 0, False, {}


@pytest.mark.less_optimised
@pytest.mark.parametrize("from_step", [0, 7])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gives": (3,)}, r"an observation of shape \(3,\), its space says \(2,\)"),
        ({"gives": (1,)}, r"an observation of shape \(1,\), its space says \(2,\)"),
        ({"gives": ()}, r"an observation of shape \(\), its space says \(2,\)"),
        ({"gives": (3,), "says": "dict"}, r"an observation\['a'\] of shape \(3,\), its space says \(2,\)"),
        ({"gives": "too few", "says": "dict"}, r"an observation without the part 'b', its space says a, b"),
        ({"gives": (3,), "says": "tuple"}, r"an observation\[0\] of shape \(3,\), its space says \(2,\)"),
        ({"gives": "too few", "says": "tuple"}, "an observation of 1 parts, its space says 2"),
    ],
    ids=str,
)
def test_a_gymnasium_env_whose_observation_has_another_form_is_told_so(options, said, from_step):
    spec = {**SPEC, "env": {"num_envs": 2, "options": {**options, "from_step": from_step}}}
    with pytest.raises(EnvFailed, match=f"^env 0 gave {said}; make the env and its observation_space"):
        hotloop.train(spec, env=Shapes, engine="torch", out=None)


@pytest.mark.heavy
@pytest.mark.parametrize("from_step", [0, 7])
def test_so_is_one_in_a_process_of_its_own(from_step):
    options = {"gives": (1,), "from_step": from_step}
    spec = {**SPEC, "env": {"num_envs": 2, "options": options, "vectorization": "async"}}
    with pytest.raises(EnvFailed, match=r"an env gave an observation of shape \(1,\), its space says \(2,\)"):
        hotloop.train(spec, env=Shapes, engine="torch", out=None)
