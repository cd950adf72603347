"""The device env contract: two pure functions on one env; this file makes them a vector env inside XLA."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, Union, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from hotloop import registry
from hotloop.errors import SpecError, said
from hotloop.trees import ArraySpec, Specs, Tree

if TYPE_CHECKING:
    from PIL.Image import Image

A = TypeVar("A")
State = Any
"""What an env remembers between steps: a tree of arrays that only the env itself looks into."""
Obs = Tree[jax.Array]
Bound = float | np.ndarray


class ObsSpec(NamedTuple):
    """Shape, dtype and bounds of one observation array."""

    shape: tuple[int, ...]
    dtype: DTypeLike
    low: Bound
    high: Bound


ObsTree = Union[ObsSpec, dict[str, "ObsTree"], tuple["ObsTree", ...]]  # noqa: UP007  # it names itself
"""An ObsSpec, or a dict or tuple (other than an ObsSpec) of these."""


class DeviceEnv(Protocol):
    """An environment as pure functions, traceable by JAX. Vectorisation is not its business."""

    @property
    def obs_spec(self) -> "ObsTree":
        """What one observation looks like: an array, or a dict or tuple of such."""

    @property
    def num_actions(self) -> int:
        """Actions are 0 … num_actions - 1."""

    def reset(self, key: jax.Array) -> tuple[State, Obs]:
        """Begin an episode."""

    def step(
        self, state: State, action: jax.Array, key: jax.Array
    ) -> tuple[State, Obs, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Return state, obs, reward, terminated, truncated, info. Never resets by itself."""


def figures_of(env: DeviceEnv) -> tuple[str, ...]:
    """Entries of `info` that say something of an episode when it ends: numbers, or one for each agent."""
    key, shape = jax.random.key(0), getattr(env, "num_agents", None)
    state, _ = jax.eval_shape(env.reset, key)
    action = jax.ShapeDtypeStruct(() if shape is None else (shape,), np.int32)
    info = jax.eval_shape(env.step, state, action, key)[5]
    clock = env.clock if isinstance(env, Clocked) else None
    return tuple(sorted(name for name, leaf in info.items() if leaf.shape in ((), action.shape) and name != clock))


@runtime_checkable
class Drawable(Protocol):
    """A device env that can draw itself."""

    @property
    def render_fps(self) -> int:
        """Steps per second of real time."""

    def render(self, state: State) -> "Image":
        """Return a PIL image of one state (NumPy arrays)."""


@runtime_checkable
class Clocked(Protocol):
    """A device env whose steps take different times."""

    @property
    def clock(self) -> str:
        """The entry of `info` that says how long a step took (`discount_per`): no figure of an episode."""


@runtime_checkable
class Parted(Protocol):
    """A device env that can name the costly parts of its step, for a profile."""

    def parts(self) -> dict[str, Callable[[State], Tree[jax.Array]]]:
        """Parts by name, each a pure function of one state."""


@runtime_checkable
class Masked(Protocol):
    """A device env that says which actions a state allows."""

    def action_mask(self, state: State) -> jax.Array:
        """Return bool (A,): True where an action is legal."""


class DeviceStep(NamedTuple):
    """What a vector step yields, N envs wide. `final_obs` is s_t; `obs` is where the next step starts.

    `final_legal` and `legal` are the actions those two allow, bool (N, A); None with masks off.
    """

    obs: Obs
    final_obs: Obs
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    info: dict[str, jax.Array]
    legal: jax.Array | None = None
    final_legal: jax.Array | None = None


def obs_shapes(env: DeviceEnv) -> Specs:
    """Shape and dtype of each array of one observation."""
    return map_obs(lambda spec: ArraySpec(spec.shape, spec.dtype), env.obs_spec)


def map_obs(function: Callable[..., A], spec: ObsTree, *others: Any) -> Tree[A]:
    """A tree like `spec`, each ObsSpec replaced by `function` of it and what is at its place in `others`."""
    if isinstance(spec, ObsSpec):
        return function(spec, *others)
    if isinstance(spec, dict):
        return {name: map_obs(function, part, *(other[name] for other in others)) for name, part in spec.items()}
    return tuple(map_obs(function, *parts) for parts in zip(spec, *others, strict=True))


def reset_all(env: DeviceEnv, key: jax.Array, num_envs: int) -> tuple[State, Obs]:
    """Begin an episode in each of `num_envs` envs."""
    return jax.vmap(env.reset)(jax.random.split(key, num_envs))


def legal_actions(env: DeviceEnv, state_N: State) -> jax.Array:
    """Which actions each of N envs allows, bool (N, A); raises SpecError for an env that does not say so."""
    name, count = type(env).__name__, env.num_actions
    if not isinstance(env, Masked):
        raise SpecError(
            f"env.action_mask is true, but {name} does not name its legal actions: a device env does in a method "
            f"action_mask(state) -> bool ({count},); add it, or leave env.action_mask out"
        )
    legal_NA = jax.vmap(env.action_mask)(state_N)
    if legal_NA.shape[1:] != (count,) or legal_NA.dtype != jnp.bool_:
        raise SpecError(
            f"{name}.action_mask(state) returns {legal_NA.dtype}{legal_NA.shape[1:]}, expected bool({count},): one "
            "entry per action"
        )
    return legal_NA


def step_all(
    env: DeviceEnv, state_N: State, action_N: jax.Array, key: jax.Array, masked: bool = False
) -> tuple[State, DeviceStep]:
    """Step every env; an env whose episode ended starts the next one in the same step (SAME_STEP autoreset).

    `masked`: say which actions are legal, too.
    """
    num_envs = action_N.shape[0]
    step_key, reset_key = jax.random.split(key)
    state_N, obs_N, reward_N, terminated_N, truncated_N, info_N = jax.vmap(env.step)(
        state_N, action_N, jax.random.split(step_key, num_envs)
    )
    done_N = terminated_N | truncated_N
    reached = (state_N, obs_N, legal_actions(env, state_N) if masked else None)

    def fresh(reached: tuple[State, Obs, jax.Array | None]) -> tuple[State, Obs, jax.Array | None]:
        begun_N, first_N = reset_all(env, reset_key, num_envs)
        chosen: tuple[State, Obs, jax.Array | None] = jax.tree.map(
            lambda new, old: jnp.where(done_N.reshape((-1,) + (1,) * (old.ndim - 1)), new, old),
            (begun_N, first_N, legal_actions(env, begun_N) if masked else None),
            reached,
        )
        return chosen

    # Episodes end rarely: skip the random resets of all N envs when none did.
    next_state_N, next_obs_N, legal_N = jax.lax.cond(jnp.any(done_N), fresh, lambda same: same, reached)
    return next_state_N, DeviceStep(next_obs_N, obs_N, reward_N, terminated_N, truncated_N, info_N, legal_N, reached[2])


def make_env(env_id: str, options: Mapping[str, object]) -> DeviceEnv:
    """Build the device env called `env_id`, or raise SpecError naming the nearest known one."""
    prefix, _, name = env_id.partition(":")
    known_as, named = (f"{prefix}:NAME", [name]) if name else (env_id, [])
    if not registry.is_known(registry.ENVS, known_as):
        raise SpecError(f"env.id: unknown device env '{env_id}'; {registry.nearest(env_id, [*registry.ENVS])}")
    try:
        make = registry.load(registry.ENVS, known_as, "env")
    except (ImportError, AttributeError) as error:
        target = registry.ENVS[known_as].target
        raise SpecError(f"env.id: '{env_id}' is said to be {target}, which cannot be imported: {error}") from error
    try:
        built: DeviceEnv = make(*named, **options)
    except SpecError:
        raise
    except TypeError as error:
        raise SpecError(f"env.options: {_complaint(error, make, options)}") from None
    except Exception as error:  # whatever someone else's code raises
        raise SpecError(f"env.id: making '{env_id}' raised {said(error)}") from error
    return built


def _complaint(error: TypeError, make: object, options: Mapping[str, object]) -> str:
    """What is wrong with the options of an env; of one that it does not have, the nearest that it has."""
    if not (isinstance(make, type) and is_dataclass(make)):
        return str(error)
    known = [each.name for each in fields(make)]
    unknown = sorted(set(options) - set(known))
    return f"'{unknown[0]}' is none of its options; {registry.nearest(unknown[0], known)}" if unknown else str(error)
