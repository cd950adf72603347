"""Acting and learning with PyTorch, on flat vectors."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from hotloop.engines.draws import PASSES, Draw, Draws, Wanted
from hotloop.engines.protocol import Choice, Counts, Learned, Lesson, Policy
from hotloop.engines.torch import modes
from hotloop.engines.torch.devices import Recipe, Team
from hotloop.engines.torch.gradient_steps import GradientSteps, LearnerState, Stepped, Work, fresh_state
from hotloop.engines.torch.modules import Given, Mode
from hotloop.engines.torch.setup import choose_device, refuse
from hotloop.errors import NetworkFailed, SpecError
from hotloop.experience import METRICS, Item, Items
from hotloop.spec import Spec
from hotloop.trees import Arrays, ArraySpec, Form, Shapes, tree_map


def make_engine(spec: Spec, obs: Shapes, num_actions: int, network: object = None) -> "TorchEngine":
    """The engine of one spec; `network` is the user's own, if any."""
    return TorchEngine(spec, obs, num_actions, network)


class TorchEngine:
    """An `EngineOf[LearnerState, torch.Tensor]` of `engines.protocol`: holds shapes and choices, never state."""

    def __init__(
        self,
        spec: Spec,
        obs: Shapes,
        num_actions: int,
        network: object = None,
        numbers: torch.dtype = torch.float32,
    ) -> None:
        """`obs` is a tree of shapes of one observation; `network` is the user's own, if any.

        `numbers` are those of weights and moments: float32, or float64 to be compared with another engine.
        """
        refuse(spec)
        self.spec, self.num_actions, self.device = spec, num_actions, choose_device()
        self._threads = torch.get_num_threads()
        recipe = Recipe(spec, obs, num_actions, network, numbers)
        self.network = recipe.made_for(self.device)
        self.layout, self.num_weights = self.network.layout, self.network.layout.size
        self._team = Team(recipe, self.network) if spec.devices > 1 else None
        of_mode = modes.compiled_steps if spec.torch.mode == "compiled" else modes.eager_steps
        self._steps = self._team or of_mode(spec, self.network)

    @property
    def device_functions(self) -> None:
        """It has no programs for the device."""
        return None

    @property
    def has_target(self) -> bool:
        """Whether there is a target net."""
        return self.spec.target.rule != "vanilla"

    def memory_available(self) -> int | None:
        """Bytes the GPU can still give; None on a CPU."""
        return int(torch.cuda.mem_get_info(self.device)[0]) if self.device.type == "cuda" else None

    def prepare(self, items_KB: Items, weight_KB: np.ndarray | None, draws: Arrays, updates: float) -> Choice | None:
        """Compile, if the spec says so, or if it leaves the choice and measuring shows that it pays."""
        try:
            return self._prepare(items_KB, weight_KB, draws, updates)
        except NetworkFailed as error:  # nothing has begun yet
            raise SpecError(str(error)) from error

    def _prepare(self, items_KB: Items, weight_KB: np.ndarray | None, draws: Arrays, updates: float) -> Choice | None:
        if self._team is not None:
            self.update(self.init(0), items_KB, weight_KB, 0.0, 0, draws)
            is_open = self.spec.torch.mode == "auto"
            return Choice(modes.FIELD, "eager", f"as learning is on {self.spec.devices} devices") if is_open else None
        start = self.init(0)

        def on(items: Items) -> Callable[[modes.Steps], Stepped]:
            work = self._work(items, weight_KB, draws, learning_rate=1e-3)

            def run(steps: modes.Steps) -> Stepped:
                stepped = steps(start, work)
                _to_host(stepped.sums)  # sync
                return stepped

            return run

        if self.spec.torch.mode != "auto":
            self._steps = modes.required(self.spec, self.network, on(items_KB))
            return None
        # Two ways to learn can be told apart by what they make of random numbers; a module of someone else's need not
        # take any number for an observation, as one that looks something up by them, or takes a root.
        run = on(_with_numbers(items_KB))
        if not self._learns(run):
            run = on(items_KB._replace(r_t=_with_numbers(items_KB).r_t))
        self._steps, choice = modes.choose(self.spec, self.network, start.params, run, updates)
        return choice

    def _learns(self, run: Callable[[modes.Steps], Stepped]) -> bool:
        """Whether gradient steps can be taken so, and are."""
        try:
            return bool(run(self._steps).sums[METRICS.index("applied")] > 0)  # sync
        except NetworkFailed:
            return False

    # -- state ------------------------------------------------------------------------------------------

    def init(self, seed: int) -> LearnerState:
        """Fresh weights; the target net starts as a copy of them."""
        return fresh_state(self.spec, self.network, seed)

    def counts(self, state: LearnerState) -> Counts:
        """Bring over three numbers."""
        return Counts(*torch.stack([state.updates, state.skipped, state.skipped_in_a_row]).tolist())  # sync

    def template(self) -> LearnerState:
        """Shapes of a state."""
        return tree_map(lambda leaf: ArraySpec(leaf.shape, leaf.numpy().dtype), self.give(self.init(0)))

    def give(self, state: LearnerState) -> LearnerState:
        """A state to be saved: on the host."""
        return tree_map(_to_host, state)  # sync

    def take(self, arrays: LearnerState) -> LearnerState:
        """A loaded state on the device."""
        return tree_map(self._to_device, arrays)

    # -- weights ----------------------------------------------------------------------------------------

    def weights(self, state: LearnerState) -> torch.Tensor:
        """The flat vector of the online net."""
        return state.params

    def to_named(self, weights: torch.Tensor) -> dict[str, np.ndarray]:
        """Copies by name."""
        return self.layout.to_named(weights)

    def from_named(self, arrays: Mapping[str, np.ndarray]) -> torch.Tensor:
        """Take named arrays back, or raise ValueError naming what does not fit this network."""
        return self.layout.from_named(arrays)

    def as_given(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """A `state_dict`."""
        return self.network.state_dict(weights)

    def put(self, batches: Form) -> Form:
        """Bring batches to the device, bytes as bytes; on a CPU, and with several devices, they stay where they are."""
        return batches if self._team is not None else tree_map(self._to_device, batches)

    def close(self) -> None:
        """End the processes of other devices."""
        if self._team is not None:
            self._team.close()

    def _to_device(self, array: Any) -> torch.Tensor:
        if isinstance(array, torch.Tensor):
            return array
        array = np.asarray(array)
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)  # a copy, which the GPU fetches by itself

    # -- acting -----------------------------------------------------------------------------------------

    def freeze(self, weights: torch.Tensor) -> Policy:
        """Act with a copy of these weights."""
        params = self.layout.unflatten(weights.detach().clone())

        def q(obs_N: Arrays, draws: Arrays = None) -> np.ndarray:
            given = cast(Given, tree_map(self._to_device, draws))
            seen = cast(Any, tree_map(self._to_device, obs_N))
            array: np.ndarray = _to_host(self.network.q(params, seen, Mode("act", given=given))).numpy()
            return array

        return q

    def remember(self, weights: torch.Tensor, memory_N: Shapes, obs_N: Arrays) -> tuple[np.ndarray, Shapes]:
        """Refuse: there are no networks with a memory here."""
        raise SpecError("engine torch has no networks with a memory (network.core); use engine jax")

    # -- chance -----------------------------------------------------------------------------------------

    def wanted_to_act(self, num_envs: int) -> dict[str, Draw] | None:
        """Draws that a policy takes to explore; None if nothing is left to chance."""
        if not self.network.is_random:
            return None
        wanted, params = Wanted(), self.layout.unflatten(self.init(0).params)
        self.network.q(params, self.network.empty_obs(num_envs), Mode("act", given=wanted))
        return dict(wanted) or None

    def wanted_to_learn(self, updates: int, batch: int) -> Draws[Draw] | None:
        """Draws that so many updates take; None if nothing is left to chance."""
        if not self.network.is_random:
            return None
        shape, by_pass = (len(PASSES), self.network.noise_size), {role: Wanted() for role in PASSES}
        vector, obs = self.init(0).params, self.network.empty_obs(batch)
        asked: Draws[torch.Tensor] = Draws(None, vector.new_zeros(shape), by_pass)
        number = vector.new_zeros(batch)
        rows = Item(obs, number.to(torch.int32), number, number, obs)
        steps = GradientSteps(self.spec, self.network, in_place=False)
        with torch.no_grad():
            outputs = steps.target_outputs(vector, rows, asked)
            steps.loss(self.layout.unflatten(vector), rows, outputs, None, asked)
        given = {
            role: {path: Draw(one.kind, (updates, *one.shape)) for path, one in wanted.items()}
            for role, wanted in by_pass.items()
        }
        return Draws(None, Draw("factors", (updates, *shape)), given)

    # -- learning ---------------------------------------------------------------------------------------

    def update(
        self,
        state: LearnerState,
        items_KB: Items,
        weight_KB: np.ndarray | None,
        learning_rate: float,
        target_moves: int,
        draws: Arrays,
    ) -> Learned[LearnerState]:
        """Gradient steps on K batches, then so many moves of the target net; done when it returns."""
        if torch.get_num_threads() != self._threads:  # each thread of Python that asks has a number of its own
            torch.set_num_threads(self._threads)
        if self.network.is_random and draws is None:
            raise ValueError("this network draws noise or quantiles; give update the draws")
        state, td_KB, sums = self._steps(state, self._work(items_KB, weight_KB, draws, learning_rate))
        state = self.move_target(state, target_moves)
        return Learned(state, _to_host(td_KB).numpy(), _to_host(sums).numpy())  # sync

    def _work(self, items_KB: Items, weight_KB: np.ndarray | None, draws: Arrays, learning_rate: float) -> Work:
        batches, weights, drawn = self.put(cast(Any, (items_KB, weight_KB, draws)))
        return Work(batches, weights, drawn, learning_rate, self.spec.replay.updates_per_batch)

    @property
    def prefers_batches(self) -> bool:
        """Never: its learners are modules."""
        return False

    def update_all(self, lessons: Sequence[Lesson[LearnerState]]) -> list[Learned[LearnerState]]:
        """`update` for several learners, one after the other."""
        return [self.update(*lesson) for lesson in lessons]

    @torch.no_grad()
    def move_target(self, state: LearnerState, times: int) -> LearnerState:
        """Mix the online net into the target net `times` times (0 leaves it as it is)."""
        if not self.has_target or not times:
            return state
        if self.spec.target.tau == 1.0:
            return state._replace(target=state.params.clone())
        share = -math.expm1(times * math.log1p(-self.spec.target.tau))  # 1 - (1 - tau)^times
        return state._replace(target=state.target + share * (state.params - state.target))


def _with_numbers(items_KB: Items) -> Items:
    """Batches with random numbers for their fractions and bytes."""
    random = np.random.default_rng(0)

    def numbers(array: np.ndarray) -> np.ndarray:
        if array.dtype == np.uint8:
            return random.integers(0, 256, array.shape, np.uint8)
        return random.standard_normal(array.shape, np.float32) if array.dtype == np.float32 else array

    return tree_map(numbers, items_KB)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu()
