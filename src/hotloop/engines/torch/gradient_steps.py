"""Gradient steps on a flat vector: targets, loss, gradient, optimiser. The same function runs operation by operation
and is what a compiler is given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from hotloop.engines.draws import PASSES, Draws
from hotloop.engines.networks import TargetOutputs
from hotloop.engines.torch.modules import Mode, Params
from hotloop.engines.torch.network import QNetwork
from hotloop.engines.torch.optimizers import Moments, Rate, stepper
from hotloop.errors import NetworkFailed, said
from hotloop.experience import METRICS, Item
from hotloop.learning import loss_scale, targets
from hotloop.spec import Spec
from hotloop.trees import tree_map

Batch = Item[torch.Tensor]


class LossScale(NamedTuple):
    """Factor that keeps small gradients of float16 from vanishing, and for how many updates it has held."""

    factor: torch.Tensor
    held: torch.Tensor


class LearnerState(NamedTuple):
    """All that learning changes, with the names of the JAX engine. `target` is empty when the rule needs none."""

    params: torch.Tensor
    target: torch.Tensor
    optimizer: Moments
    updates: torch.Tensor
    skipped: torch.Tensor
    skipped_in_a_row: torch.Tensor
    loss_scale: LossScale | tuple[()] = ()  # of float16


def fresh_state(spec: Spec, network: QNetwork, seed: int) -> LearnerState:
    """Fresh weights; the target net starts as a copy of them."""
    params = network.layout.flatten(network.fresh(seed))
    target = params.clone() if spec.target.rule != "vanilla" else params.new_zeros(0)
    moments = stepper(spec.optimizer, in_place=False).init(params)
    updates, skipped, in_a_row, held = (torch.zeros((), dtype=torch.int32, device=params.device) for _ in range(4))
    is_scaled = spec.precision == "float16"
    scale = LossScale(torch.full_like(params[0], loss_scale.FIRST), held) if is_scaled else ()
    return LearnerState(params, target, moments, updates, skipped, in_a_row, scale)


class Slope(NamedTuple):
    """What a batch says: the flat gradient of its loss, the loss, TD errors (B,) and the mean Q-value."""

    gradient: torch.Tensor
    loss: torch.Tensor
    td_B: torch.Tensor
    q: torch.Tensor


class Work(NamedTuple):
    """What gradient steps are taken on: K batches (K, B, …), `on_each` steps on each; draws have a row for a step."""

    batches: Batch
    weight_KB: torch.Tensor | None
    draws_K: Draws[torch.Tensor] | None
    learning_rate: Rate
    on_each: int = 1


class Stepped(NamedTuple):
    """What gradient steps left behind: TD errors (K, B) of each batch's last step, and METRICS sums."""

    state: LearnerState
    td_KB: torch.Tensor
    sums: torch.Tensor


Reduce = Callable[[Slope], Slope]
"""Makes the slope of a whole batch of the slopes that several devices have of their shares of it."""


class GradientSteps:
    """The gradient steps of one spec; nobody waits for one of them."""

    def __init__(self, spec: Spec, network: QNetwork, *, in_place: bool, reduce: Reduce | None = None) -> None:
        """`in_place` changes a copy of the weights step by step; else all is a pure function, for a compiler."""
        self.spec, self.network, self._in_place, self._reduce = spec, network, in_place, reduce
        self._stepper = stepper(spec.optimizer, in_place=in_place)
        self._maths, self._xp, self._layout = network.maths, network.xp, network.layout

    def __call__(self, state: LearnerState, work: Work) -> Stepped:
        """All of the work, from a state on."""
        batches, weight_KB, draws_K, learning_rate, on_each = work
        count = batches.a_tm1.shape[0]
        params, optimizer, scale = state.params, state.optimizer, state.loss_scale
        if self._in_place:  # whoever still reads the old state, as a checkpoint does, reads what it was
            params, optimizer = params.clone(), tree_map(torch.clone, optimizer)
        # The target net stands still, so one forward pass does for all batches; with noise, each step has its own.
        is_random = self.network.is_random
        outputs_K = None if is_random else self._target_outputs_of_batches(state.target, batches)
        rows, errors, healthy = [], [], []
        for k in range(count):
            batch, weight_B, known = _at(k, (batches, weight_KB, outputs_K))
            for number in range(on_each):
                draws = _at(k * on_each + number, draws_K)
                outputs = self.target_outputs(state.target, batch, draws) if known is None else known
                slope = self._slope(params, batch, outputs, weight_B, draws, scale)
                params, optimizer, norm, finite = self._step(params, optimizer, slope, learning_rate)
                rows.append(torch.stack([slope.loss, norm, slope.q, finite.to(norm.dtype)]))
                if scale:
                    healthy.append(finite | loss_scale.is_only_overflow(scale.factor, finite))
                    scale = LossScale(*loss_scale.rescaled(scale.factor, scale.held, finite, xp=self._xp))
            errors.append(slope.td_B)
        metrics_KM = torch.stack(rows)
        applied_K = metrics_KM[:, METRICS.index("applied")] > 0
        healthy_K = torch.stack(healthy) if healthy else applied_K
        applied, steps = applied_K.sum(dtype=torch.int32), count * on_each
        since_healthy = healthy_K.flip(0).to(torch.int32).argmax().to(torch.int32)
        in_a_row = torch.where(healthy_K.any(), since_healthy, state.skipped_in_a_row + steps)
        counted = (state.updates + applied, state.skipped + (steps - applied), in_a_row)
        sums = torch.where(applied_K[:, None], metrics_KM, 0.0).sum(0)
        return Stepped(LearnerState(params, state.target, optimizer, *counted, scale), torch.stack(errors), sums)

    # -- what a batch is pulled towards -----------------------------------------------------------------

    @torch.no_grad()
    def _target_outputs_of_batches(self, target: torch.Tensor, batches: Batch) -> TargetOutputs[torch.Tensor]:
        """What the target net says of K batches (K, B, …)."""
        lead = batches.a_tm1.shape[:2]
        flat = tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batches)
        outputs = self.target_outputs(target, flat, None)
        return tree_map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), outputs)

    @torch.no_grad()
    def target_outputs(
        self, target: torch.Tensor, batch: Batch, draws: Draws[torch.Tensor] | None
    ) -> TargetOutputs[torch.Tensor]:
        """What the target net says of a batch (B, …)."""
        network, rule = self.network, self.spec.target.rule
        if rule == "vanilla":
            return TargetOutputs(None, None)
        params, mode = self._layout.unflatten(target), _mode("target", draws)
        values_t = network.estimate(params, batch.s_t, mode).values
        soft, choice_BA, bonus_B = self.spec.target.munchausen, None, None
        if network.head.chooses_apart and rule == "target":
            choice_BA = self._maths.q(network.estimate(params, batch.s_t, _mode("choose", draws)).values)
        if soft is not None:
            q_tm1_BA = self._maths.q(network.estimate(params, batch.s_tm1, mode.part(1)).values)
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
        maths, rule, (values_t, bonus_B, choice_BA) = self._maths, self.spec.target.rule, outputs
        if rule != "target":
            online_t = self.network.estimate(params, batch.s_t, _mode("choose", draws)).values
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

    # -- its gradient -----------------------------------------------------------------------------------

    def loss(
        self,
        params: Params,
        batch: Batch,
        outputs: TargetOutputs[torch.Tensor],
        weight_B: torch.Tensor | None,
        draws: Draws[torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean loss of one batch under the network's own parameters, TD errors (B,) and the mean Q-value."""
        maths, target = self._maths, self._target(params, batch, outputs, draws)
        values, tau = self.network.estimate(params, batch.s_tm1, _mode("learn", draws))
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
        scale: LossScale | tuple[()],
    ) -> Slope:
        """The flat gradient of one batch, which may be taken in parts and on several devices."""
        parts = self.spec.optimizer.accumulate
        if parts == 1:
            slope = self._slope_of_part(params, batch, outputs, weight_B, draws, scale)
        else:
            split = tree_map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), (batch, outputs, weight_B))
            draws_of_parts = None if draws is None else _draws_of_parts(draws, parts)
            each = []
            for i in range(parts):
                rows, given, weights, drawn = _at(i, (*split, draws_of_parts))
                each.append(self._slope_of_part(params, rows, given, weights, drawn, scale))
            gradient = each[0].gradient
            for one in each[1:]:
                gradient = gradient + one.gradient
            loss, q = (torch.stack([getattr(one, name) for one in each]).mean() for name in ("loss", "q"))
            slope = Slope(gradient / parts, loss, torch.cat([one.td_B for one in each]), q)
        return slope if self._reduce is None else self._reduce(slope)

    def _slope_of_part(
        self,
        params: torch.Tensor,
        batch: Batch,
        outputs: TargetOutputs[torch.Tensor],
        weight_B: torch.Tensor | None,
        draws: Draws[torch.Tensor] | None,
        scale: LossScale | tuple[()],
    ) -> Slope:
        with torch.enable_grad():
            leaf = params.detach().requires_grad_()
            loss, td_B, q = self.loss(self._layout.unflatten(leaf), batch, outputs, weight_B, draws)
            gradient = self._gradient(loss * scale.factor if scale else loss, leaf)
        if scale:  # what stands apart asks for its step whatever the loss is multiplied by
            apart = self.network.stands_apart
            unscaled = gradient / scale.factor
            gradient = unscaled if apart is None else torch.where(apart, gradient, unscaled)
        return Slope(gradient, loss.detach(), td_B, q)

    def _gradient(self, loss: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        try:
            (gradient,) = torch.autograd.grad(loss, leaf)
        except Exception as error:
            if not self.network.is_own:
                raise
            raise NetworkFailed(f"the way back through the network raised {said(error)}") from error
        return gradient

    @torch.no_grad()
    def _step(
        self, params: torch.Tensor, optimizer: Moments, slope: Slope, learning_rate: Rate
    ) -> tuple[torch.Tensor, Moments, torch.Tensor, torch.Tensor]:
        """Clip and follow a gradient, unless it or the loss is not finite: then nothing changes.

        Returns beside weights and moments the norm before clipping, and whether the step was taken.
        """
        gradient, apart = slope.gradient, self.network.stands_apart
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
        params, optimizer = self._stepper.step(params, gradient, optimizer, learning_rate, finite)
        return params if apart is None else torch.where(apart, alone, params), optimizer, norm, finite


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
