"""Acting and learning with PyTorch, operation by operation, on flat vectors."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from hotloop import registry
from hotloop.engines.draws import PASSES, Draw, Draws, Wanted
from hotloop.engines.networks import RUNNING, HeadOutput, TargetOutputs, noise_size
from hotloop.engines.protocol import Counts, Learned, Policy
from hotloop.engines.torch import own
from hotloop.engines.torch.arrays import TorchArrays, detached
from hotloop.engines.torch.flat import Layout
from hotloop.engines.torch.modules import (
    Functions,
    Given,
    Inputs,
    Mode,
    Params,
    perturbed,
    sequential,
)
from hotloop.engines.torch.optimizers import Moments, stepper
from hotloop.engines.torch.setup import choose_device, refuse
from hotloop.errors import SpecError
from hotloop.experience import METRICS, Item, Items
from hotloop.learning import targets
from hotloop.learning.estimates import Estimate
from hotloop.spec import CustomNetwork, Head, Network, ScalarHead, Spec
from hotloop.trees import Arrays, ArraySpec, Form, Shapes, Specs, leaves, tree_map, zeros_of

Batch = Item[torch.Tensor]
NAME = "torch"


class LearnerState(NamedTuple):
    """All that learning changes, with the names of the JAX engine. `target` is empty when the rule needs none."""

    params: torch.Tensor
    target: torch.Tensor
    optimizer: Moments
    updates: torch.Tensor
    skipped: torch.Tensor
    skipped_in_a_row: torch.Tensor


class Slope(NamedTuple):
    """What a batch says: the flat gradient of its loss, the loss, TD errors (B,) and the mean Q-value."""

    gradient: torch.Tensor
    loss: torch.Tensor
    td_B: torch.Tensor
    q: torch.Tensor


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
        self.spec, self.num_actions, self.device, self._numbers = spec, num_actions, choose_device(), numbers
        self._network = _composed(spec, num_actions) if network is None else own.functions_of(network)
        self._head = spec.network.head if isinstance(spec.network, Network) else ScalarHead()
        self._xp = TorchArrays(numbers, self.device)
        self._estimates = _estimates(spec, self._head, self._xp)
        self.is_random = isinstance(spec.network, Network) and spec.network.is_random
        self._stepper = stepper(spec.optimizer)
        self._obs = cast(Specs, tree_map(lambda leaf: ArraySpec(leaf.shape, leaf.dtype), obs))
        params = self._fresh(0)
        self.layout, self._noise_size = Layout(params, numbers, self.device), noise_size(params)
        self.num_weights = self.layout.size
        frozen = set() if network is None else own.frozen_names(network)
        self._stands_apart = self._where(lambda name: name.rpartition("/")[2] in RUNNING or name in frozen)
        self._refuse_wrong_output()

    def _fresh(self, seed: int) -> Params:
        """A network's own tree of first weights."""
        with torch.no_grad():
            random = torch.Generator().manual_seed(seed)
            return self._network.init(random, tree_map(torch.from_numpy, zeros_of(self._obs, (1,))))

    def _refuse_wrong_output(self) -> None:
        """A network gives one finite Q-value per action, for one observation and for several."""
        params = self.layout.unflatten(self.layout.flatten(self._fresh(0)))
        for count in (1, 2):
            try:
                q = self._q(params, self._empty_obs(count), Mode("act"))
            except SpecError:
                raise
            except Exception as error:  # whatever a network of someone else's raises
                seen = [f"{leaf.dtype}{(count, *leaf.shape)}" for leaf in leaves(self._obs)]
                raise SpecError(
                    f"the network raised {type(error).__name__} for {', '.join(seen)}: {_first_line(error)}"
                ) from error
            if tuple(q.shape) != (count, self.num_actions):
                raise SpecError(
                    f"the network returns shape {tuple(q.shape)} for {count} observation(s), expected "
                    f"({count}, {self.num_actions}): one Q-value per action"
                )
            if not bool(torch.isfinite(q).all()):  # sync
                raise SpecError(f"the network returns {q.tolist()} for observations of zeros; expected finite Q-values")

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

    # -- state ------------------------------------------------------------------------------------------

    def init(self, seed: int) -> LearnerState:
        """Fresh weights; the target net starts as a copy of them."""
        params = self.layout.flatten(self._fresh(seed))
        target = params.clone() if self.has_target else params.new_zeros(0)
        updates, skipped, in_a_row = (torch.zeros((), dtype=torch.int32, device=self.device) for _ in range(3))
        return LearnerState(params, target, self._stepper.init(params), updates, skipped, in_a_row)

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

    def put(self, batches: Form) -> Form:
        """Bring batches to the device; done when it returns."""
        return tree_map(self._to_device, batches)

    def _to_device(self, array: Any) -> torch.Tensor:
        if isinstance(array, torch.Tensor):
            return array
        array = np.asarray(array)
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)

    # -- acting -----------------------------------------------------------------------------------------

    def freeze(self, weights: torch.Tensor) -> Policy:
        """Act with a copy of these weights."""
        params = self.layout.unflatten(weights.detach().clone())

        def q(obs_N: Arrays, draws: Arrays = None) -> np.ndarray:
            given = cast(Given, None if draws is None else self.put(draws))
            array: np.ndarray = _to_host(self._q(params, self.put(obs_N), Mode("act", given=given))).numpy()
            return array

        return q

    def remember(self, weights: torch.Tensor, memory_N: Shapes, obs_N: Arrays) -> tuple[np.ndarray, Shapes]:
        """Refuse: there are no networks with a memory here."""
        raise SpecError("engine torch has no networks with a memory (network.core); use engine jax")

    def _q(self, params: Params, obs_B: Any, mode: Mode) -> torch.Tensor:
        with torch.no_grad():
            return self._estimates.q(self._estimate(params, obs_B, mode).values)

    def _estimate(self, params: Params, obs_B: Inputs, mode: Mode) -> HeadOutput[torch.Tensor]:
        """What the network says under its own parameters (a tree), in the numbers of the weights."""
        if mode.noise is not None:
            params = perturbed(params, mode.noise)
        values, tau = self._network.apply(params, obs_B, mode)
        return HeadOutput(values.to(self._numbers), tau)

    # -- chance -----------------------------------------------------------------------------------------

    def wanted_to_act(self, num_envs: int) -> dict[str, Draw] | None:
        """Draws that a policy takes to explore; None if nothing is left to chance."""
        if not self.is_random:
            return None
        wanted = Wanted()
        self._q(self.layout.unflatten(self.init(0).params), self._empty_obs(num_envs), Mode("act", given=wanted))
        return dict(wanted) or None

    def wanted_to_learn(self, updates: int, batch: int) -> Draws[Draw] | None:
        """Draws that so many updates take; None if nothing is left to chance."""
        if not self.is_random:
            return None
        shape, by_pass = (len(PASSES), self._noise_size), {role: Wanted() for role in PASSES}
        vector, obs = self.init(0).params, self._empty_obs(batch)
        asked: Draws[torch.Tensor] = Draws(None, vector.new_zeros(shape), by_pass)
        number = vector.new_zeros(batch)
        rows = Item(obs, number.to(torch.int32), number, number, obs)
        with torch.no_grad():
            outputs = self._target_outputs(vector, rows, asked)
            self._loss(self.layout.unflatten(vector), rows, outputs, None, asked)
        given = {
            role: {path: Draw(one.kind, (updates, *one.shape)) for path, one in wanted.items()}
            for role, wanted in by_pass.items()
        }
        return Draws(None, Draw("factors", (updates, *shape)), given)

    def _empty_obs(self, count: int) -> Any:
        return self.put(zeros_of(self._obs, (count,)))

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
        """K gradient steps on K batches, then so many moves of the target net; done when it returns."""
        batches, weights, drawn = self.put(cast(Any, (items_KB, weight_KB, draws)))
        if self.is_random and drawn is None:
            raise ValueError("this network draws noise or quantiles; give update the draws")
        state, td_KB, sums = self._update(state, batches, weights, learning_rate, drawn)
        state = self._move_target(state, target_moves)
        return Learned(state, _to_host(td_KB).numpy(), _to_host(sums).numpy())  # sync

    def _update(
        self,
        state: LearnerState,
        batches: Batch,
        weight_KB: torch.Tensor | None,
        learning_rate: float,
        draws_K: Draws[torch.Tensor] | None,
    ) -> tuple[LearnerState, torch.Tensor, torch.Tensor]:
        """K gradient steps without waiting for one of them; TD errors (K, B) and METRICS sums."""
        count = batches.a_tm1.shape[0]
        # One copy for K steps in place: whoever still reads the old state, as a checkpoint does, reads what it was.
        params, optimizer = state.params.clone(), tree_map(torch.clone, state.optimizer)
        # The target net stands still, so one forward pass does for all batches; with noise, each has its own draw.
        outputs_K = None if self.is_random else self._target_outputs_of_batches(state.target, batches)
        rows, errors = [], []
        for k in range(count):
            batch, weight_B, draws = _at(k, (batches, weight_KB, draws_K))
            outputs = self._target_outputs(state.target, batch, draws) if outputs_K is None else _at(k, outputs_K)
            slope = self._slope(params, batch, outputs, weight_B, draws)
            norm, finite = self._step(params, optimizer, slope, learning_rate)
            rows.append(torch.stack([slope.loss, norm, slope.q, finite.to(norm.dtype)]))
            errors.append(slope.td_B)
        metrics_KM = torch.stack(rows)
        applied_K = metrics_KM[:, METRICS.index("applied")] > 0
        applied = applied_K.sum(dtype=torch.int32)
        since_applied = applied_K.flip(0).to(torch.int32).argmax().to(torch.int32)
        in_a_row = torch.where(applied > 0, since_applied, state.skipped_in_a_row + count)
        counted = (state.updates + applied, state.skipped + (count - applied), in_a_row)
        sums = torch.where(applied_K[:, None], metrics_KM, 0.0).sum(0)
        return LearnerState(params, state.target, optimizer, *counted), torch.stack(errors), sums

    @torch.no_grad()
    def _target_outputs_of_batches(self, target: torch.Tensor, batches: Batch) -> TargetOutputs[torch.Tensor]:
        """What the target net says of K batches (K, B, …)."""
        lead = batches.a_tm1.shape[:2]
        flat = tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batches)
        outputs = self._target_outputs(target, flat, None)
        return tree_map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), outputs)

    @torch.no_grad()
    def _target_outputs(
        self, target: torch.Tensor, batch: Batch, draws: Draws[torch.Tensor] | None
    ) -> TargetOutputs[torch.Tensor]:
        """What the target net says of a batch (B, …)."""
        if not self.has_target:
            return TargetOutputs(None, None)
        params, mode = self.layout.unflatten(target), _mode("target", draws)
        values_t = self._estimate(params, batch.s_t, mode).values
        soft, choice_BA, bonus_B = self.spec.target.munchausen, None, None
        if self._head.chooses_apart and self.spec.target.rule == "target":
            choice_BA = self._estimates.q(self._estimate(params, batch.s_t, _mode("choose", draws)).values)
        if soft is not None:
            q_tm1_BA = self._estimates.q(self._estimate(params, batch.s_tm1, mode.part(1)).values)
            policy_BA = targets.log_policy(q_tm1_BA, soft.temperature, xp=self._xp)
            bonus_B = soft.alpha * torch.clamp(
                targets.value_of(policy_BA, batch.a_tm1, xp=self._xp), min=soft.clip, max=0.0
            )
        return TargetOutputs(values_t, bonus_B, choice_BA)

    @torch.no_grad()
    def _target(
        self, params: Params, batch: Batch, outputs: TargetOutputs[torch.Tensor], draws: Draws[torch.Tensor] | None
    ) -> torch.Tensor:
        """What the estimates of a batch are pulled towards, by the target rule."""
        maths, rule, (values_t, bonus_B, choice_BA) = self._estimates, self.spec.target.rule, outputs
        if rule != "target":
            online_t = self._estimate(params, batch.s_t, _mode("choose", draws)).values
            values_t = online_t if rule == "vanilla" else values_t
        # Of the net that chooses.
        q_t_BA = choice_BA if choice_BA is not None else maths.q(values_t if rule == "target" else online_t)
        q_t_BA = targets.legal_only(q_t_BA, batch.legal_t, xp=self._xp)
        soft = self.spec.target.munchausen
        z_t = (
            targets.best_value(values_t, q_t_BA, xp=self._xp)
            if soft is None
            else targets.soft_value(values_t, q_t_BA, soft.temperature, xp=self._xp)
        )
        r_t_B = batch.r_t if bonus_B is None else batch.r_t + bonus_B
        return maths.target(r_t_B, batch.discount_t, z_t)

    def _loss(
        self,
        params: Params,
        batch: Batch,
        outputs: TargetOutputs[torch.Tensor],
        weight_B: torch.Tensor | None,
        draws: Draws[torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean loss of one batch under the network's own parameters, TD errors (B,) and the mean Q-value."""
        maths, target = self._estimates, self._target(params, batch, outputs, draws)
        values, tau = self._estimate(params, batch.s_tm1, _mode("learn", draws))
        z = targets.value_of(values, batch.a_tm1, xp=self._xp)
        loss_B, td_B = maths.loss(z, tau, target)
        weighted_B = loss_B if weight_B is None else weight_B * loss_B
        return weighted_B.mean(), td_B.detach(), maths.q(z).detach().mean()

    def _slope(
        self,
        params: torch.Tensor,
        batch: Batch,
        outputs: TargetOutputs[torch.Tensor],
        weight_B: torch.Tensor | None,
        draws: Draws[torch.Tensor] | None,
    ) -> Slope:
        """The flat gradient of one batch, which may be taken in parts."""
        parts = self.spec.optimizer.accumulate
        if parts == 1:
            return self._slope_of_part(params, batch, outputs, weight_B, draws)
        split = tree_map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), (batch, outputs, weight_B))
        draws_of_parts = None if draws is None else _draws_of_parts(draws, parts)
        slopes = [self._slope_of_part(params, *_at(part, (*split, draws_of_parts))) for part in range(parts)]
        gradient = slopes[0].gradient
        for slope in slopes[1:]:
            gradient = gradient + slope.gradient
        loss, q = (torch.stack([getattr(slope, name) for slope in slopes]).mean() for name in ("loss", "q"))
        return Slope(gradient / parts, loss, torch.cat([slope.td_B for slope in slopes]), q)

    def _slope_of_part(
        self,
        params: torch.Tensor,
        batch: Batch,
        outputs: TargetOutputs[torch.Tensor],
        weight_B: torch.Tensor | None,
        draws: Draws[torch.Tensor] | None,
    ) -> Slope:
        leaf = params.detach().requires_grad_()
        loss, td_B, q = self._loss(self.layout.unflatten(leaf), batch, outputs, weight_B, draws)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return Slope(gradient, loss.detach(), td_B, q)

    @torch.no_grad()
    def _step(
        self, params: torch.Tensor, optimizer: Moments, slope: Slope, learning_rate: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Clip and follow a gradient in place, unless it or the loss is not finite: then nothing changes.

        Returns the norm before clipping, and whether the step was taken.
        """
        gradient, apart = slope.gradient, self._stands_apart
        if apart is not None:  # running averages take the step they ask for, whatever the optimiser
            alone = torch.where(apart, params - gradient, params)
            gradient = torch.where(apart, 0.0, gradient)
        norm = torch.linalg.vector_norm(gradient)
        finite = torch.isfinite(norm) & torch.isfinite(slope.loss)
        if apart is not None:
            finite = finite & torch.isfinite(torch.where(apart, alone, 0.0)).all()
            alone = torch.where(finite, alone, params)
        if self.spec.optimizer.clip is not None:
            gradient = gradient * torch.clamp(self.spec.optimizer.clip / (norm + 1e-6), max=1.0)
        self._stepper.step(params, gradient, optimizer, learning_rate, finite)
        if apart is not None:
            params.copy_(torch.where(apart, alone, params))
        return norm, finite

    @torch.no_grad()
    def _move_target(self, state: LearnerState, times: int) -> LearnerState:
        """Mix the online net into the target net `times` times (0 leaves it as it is)."""
        if not self.has_target or not times:
            return state
        if self.spec.target.tau == 1.0:
            return state._replace(target=state.params.clone())
        share = -math.expm1(times * math.log1p(-self.spec.target.tau))  # 1 - (1 - tau)^times
        return state._replace(target=state.target + share * (state.params - state.target))

    def _where(self, is_meant: Callable[[str], bool]) -> torch.Tensor | None:
        """Which numbers of the flat vector belong to parameters of certain names; None if none do."""
        mask = np.zeros(self.layout.size, bool)
        for name, (start, end, _) in self.layout.spans().items():
            mask[start:end] = is_meant(name)
        return torch.from_numpy(mask).to(self.device) if mask.any() else None


def _mode(role: str, draws: Draws[torch.Tensor] | None) -> Mode:
    """The mode of one pass."""
    if draws is None:
        return Mode(role)
    number, given = PASSES.index(role), None if draws.given is None else draws.given[role]
    return Mode(role, draws.noise_PT[number], given).part(number)


def _draws_of_parts(draws: Draws[torch.Tensor], parts: int) -> Draws[torch.Tensor]:
    """The draws of each part of a batch (a leading axis): noise is common to all."""
    noise = draws.noise_PT.expand(parts, *draws.noise_PT.shape)
    return Draws(None, noise, tree_map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), draws.given))


def _at(index: int, tree: Any) -> Any:
    """One row of each tensor of a tree."""
    return tree_map(lambda leaf: leaf[index], tree)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _composed(spec: Spec, num_actions: int) -> Functions:
    if isinstance(spec.network, CustomNetwork):
        raise ValueError(
            f"this spec was trained with a network of your own ({spec.network.name}); pass it again from Python: "
            "hotloop.load(run, network=module)"
        )
    network = spec.network
    torso = registry.builder(network.torso.record, NAME)(network.torso, network.init)
    head = registry.builder(network.head.record, NAME)(network.head, num_actions, network.init)
    return sequential(torso=torso, head=head)


def _estimates(spec: Spec, head: Head, xp: TorchArrays) -> Estimate:
    """The maths of what the head says."""
    make = registry.imported(head.record.estimates)
    estimate: Estimate = make(head, spec.loss, xp=xp, constant=detached)
    return estimate
