"""Whether a device env of someone else's keeps the contract: by abstract evaluation, before anything is compiled."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hotloop.envs.device import DeviceEnv, ObsSpec
from hotloop.errors import SpecError, said

RESET, STEP = "state, obs", "state, obs, reward, terminated, truncated, info"
"""What the two functions of an env return."""


def require_contract(env: DeviceEnv) -> None:
    """Raise SpecError for an env whose functions do not return what the contract says; ours are known to."""
    if type(env).__module__.partition(".")[0] == "hotloop":
        return
    name = type(env).__name__
    _require_actions(env, name)
    agents = _agents(env, name)
    declared, key = _declared(env, name, agents), jax.eval_shape(jax.random.key, 0)
    state, obs = _results(f"{name}.reset", RESET, env.reset, key)
    _require_obs(f"{name}.reset", obs, declared)
    action, where = jax.ShapeDtypeStruct(agents, np.int32), f"{name}.step"
    reached, obs, reward, terminated, truncated, info = _results(where, STEP, env.step, state, action, key)
    _require_obs(where, obs, declared)
    _require_same_state(name, state, reached)
    if not (isinstance(reward, jax.ShapeDtypeStruct) and reward.shape == agents and reward.dtype.kind in "biuf"):
        expected = "one number" if not agents else "one number for each agent"
        raise SpecError(f"env: {where} gives a reward of {_form(reward)}, expected {expected}: float32{agents}")
    for what, flag in (("terminated", terminated), ("truncated", truncated)):
        if not (_is_scalar(flag) and flag.dtype == np.bool_):
            raise SpecError(f"env: {where} gives {what} as {_form(flag)}, expected one truth value: bool()")
    if not isinstance(info, dict):
        raise SpecError(f"env: {where} gives info as {type(info).__name__}, expected a dict, which may be empty")


def _require_actions(env: DeviceEnv, name: str) -> None:
    count = _asked(f"{name}.num_actions", lambda: env.num_actions)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise SpecError(f"env: {name}.num_actions is {_short(count)}, expected a whole number of 1 or more")


def _agents(env: DeviceEnv, name: str) -> tuple[int, ...]:
    """The axis of the agents, where several act in the env: () without one."""
    if not hasattr(env, "num_agents"):
        return ()
    count, names = env.num_agents, getattr(env, "agent_names", None)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SpecError(f"env: {name}.num_agents is {_short(count)}, expected a whole number of 1 or more")
    are_names = isinstance(names, tuple) and all(isinstance(one, str) for one in names)
    if names is None or not are_names or not len(names) == len(set(names)) == count:
        raise SpecError(f"env: {name}.agent_names is {_short(names)}, expected a tuple of {count} different names")
    return (count,)


def _declared(env: DeviceEnv, name: str, agents: tuple[int, ...]) -> Any:
    """What the env says of its observations, in the numbers that JAX has; with an axis of agents, if there is one."""

    def read(spec: Any) -> Any:
        if isinstance(spec, ObsSpec):
            return jax.ShapeDtypeStruct((*agents, *spec.shape), jax.dtypes.canonicalize_dtype(spec.dtype))
        if isinstance(spec, dict):
            return {key: read(part) for key, part in spec.items()}
        if type(spec) is tuple:
            return tuple(read(part) for part in spec)
        raise SpecError(
            f"env: {name}.obs_spec has a {type(spec).__name__}, expected an ObsSpec(shape, dtype, low, high), or a "
            "dict or tuple of these"
        )

    return _asked(f"{name}.obs_spec", lambda: read(env.obs_spec))


def _results(where: str, names: str, function: Callable[..., Any], *inputs: Any) -> Any:
    """What a function of the env returns, as shapes: as many things as it should."""
    made = _asked(where, lambda: jax.eval_shape(function, *inputs))
    expected = names.count(",") + 1
    if not isinstance(made, tuple | list) or len(made) != expected:
        seen = f"{len(made)} results" if isinstance(made, tuple | list) else f"one {type(made).__name__}"
        raise SpecError(f"env: {where} returns {seen}, expected {expected}: {names}")
    return made


def _require_obs(where: str, obs: Any, declared: Any) -> None:
    if _typed(obs) != _typed(declared):
        raise SpecError(
            f"env: {where} gives an observation of {_form(obs)}, but obs_spec says {_form(declared)}; make them agree"
        )


def _require_same_state(name: str, begun: Any, reached: Any) -> None:
    """A state goes round in a loop, so it stays what it is."""
    if _typed(begun) == _typed(reached):
        return
    path, before, after = "", begun, reached
    if _typed(begun)[0] == _typed(reached)[0]:  # then it is one of its arrays
        leaves = zip(jax.tree_util.tree_leaves_with_path(begun), jax.tree.leaves(reached), strict=True)
        path, before, after = next(
            (jax.tree_util.keystr(path), old, new) for (path, old), new in leaves if _typed(old) != _typed(new)
        )
    raise SpecError(
        f"env: the state{path} of {name} is {_form(before)} after reset and {_form(after)} after step, expected the "
        "same form, shapes and dtypes; cast it in one of them"
    )


def _asked(where: str, question: Callable[[], Any]) -> Any:
    try:
        return question()
    except SpecError:
        raise
    except Exception as error:  # whatever the user's own code raises, and JAX of it
        raise SpecError(f"env: {where} cannot be traced by JAX: {said(error)}") from error


def _typed(tree: Any) -> tuple[Any, ...]:
    """Form, shapes and dtypes, to be compared; whether a number's dtype is only a guess is not a part of them."""
    leaves, form = jax.tree.flatten(tree)
    return form, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _is_scalar(made: Any) -> bool:
    return isinstance(made, jax.ShapeDtypeStruct) and made.shape == ()


def _form(tree: Any) -> str:
    return _short(jax.tree.map(lambda leaf: f"{leaf.dtype}{leaf.shape}", tree)).replace("'", "")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:120]} …"
