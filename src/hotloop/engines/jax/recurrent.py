"""The engine for networks with a memory: it acts step by step and learns from sequences.

As in R2D2, a sequence starts with the memory the network had when it was played. `burn_in` steps without a gradient
bring that memory up to date with the present weights, of the online and the target net each; the steps after them are
learned.
"""

from typing import cast

import jax
import jax.numpy as jnp

from hotloop.engines.building import head_of, torso_of
from hotloop.engines.draws import Draws
from hotloop.engines.jax import cores
from hotloop.engines.jax.engine import Batch, JaxEngine, LearnerState
from hotloop.engines.jax.modules import ACTING, Functions, Inputs, Module, Params
from hotloop.engines.networks import HeadOutput, TargetOutputs
from hotloop.experience import Sequences
from hotloop.learning import targets
from hotloop.spec import Network, Spec
from hotloop.trees import Shapes


class RecurrentEngine(JaxEngine):
    """A JaxEngine whose network is torso, core and head. Batches are `Sequences`."""

    def __init__(self, spec: Spec, obs: Shapes, num_actions: int, network: Module | None = None) -> None:
        section, sequence = spec.network, spec.replay.sequence
        if network is not None or not isinstance(section, Network) or section.core is None or sequence is None:
            raise ValueError("memory is for networks with a core and replay.sequence, not for one of your own")
        self._burn_in = sequence.burn_in
        self._torso = Functions(*torso_of(section, spec.engine))
        self._core: cores.RecurrentModule = cores.CORES[section.core.kind](section.core, section.init)
        self._outputs = Functions(*head_of(section, spec.engine, num_actions))
        super().__init__(spec, obs, num_actions)

    def _make_network(self, network: Module | None) -> Functions:
        """Torso, core and head, which without a memory see what begins an episode."""
        del network
        return Functions(self._init_network, lambda params, obs_B, mode: HeadOutput(self._from_nothing(params, obs_B)))

    def _init_network(self, key: jax.Array, obs_B: Inputs) -> Params:
        torso_key, core_key, head_key = jax.random.split(key, 3)
        torso = self._torso.init(torso_key, obs_B)
        x_BF = self._torso.apply(torso, obs_B, ACTING)
        core = self._core.init(core_key, x_BF)
        _, y_BH = self._core.step(core, self.memory(x_BF.shape[0]), x_BF)
        return {"torso": torso, "core": core, "head": self._outputs.init(head_key, y_BH)}

    def _from_nothing(self, params: Params, obs_B: Inputs) -> jax.Array:
        """Q-values of observations that each begin an episode: all there is to say without a memory."""
        return self._recall(params, self.memory(jax.tree.leaves(obs_B)[0].shape[0]), obs_B)[1]

    # -- acting ---------------------------------------------------------------------------------------

    def memory(self, count: int) -> Inputs:
        """What each of `count` envs remembers at the start of an episode."""
        return self._core.first(count)

    def recall(self, vector: jax.Array, memory_N: Inputs, obs_N: Inputs) -> tuple[Inputs, jax.Array]:
        """The memory after an observation, and Q-values (N, A), under a flat weight vector."""
        return self._recall(self.layout.unflatten(vector), memory_N, obs_N)

    def play(
        self, params: jax.Array, memory_N: Inputs, obs_N: Inputs, legal_NA: jax.Array | None = None
    ) -> tuple[Inputs, jax.Array]:
        """The memory after an observation, and the best action of each env."""
        memory_N, q_NA = self.recall(params, memory_N, obs_N)
        return memory_N, jnp.argmax(targets.legal_only(q_NA, legal_NA, xp=jnp), axis=-1).astype(jnp.int32)

    def _recall(self, params: Params, memory_N: Inputs, obs_N: Inputs) -> tuple[Inputs, jax.Array]:
        params = self.in_precision(params)
        x_NF = self._torso.apply(params["torso"], obs_N, ACTING)
        memory_N, y_NH = self._core.step(params["core"], memory_N, x_NF)
        return memory_N, self._outputs.apply(params["head"], y_NH, ACTING).values.astype(jnp.float32)

    # -- learning -------------------------------------------------------------------------------------

    def unroll(self, params: Params, memory_B: Inputs, obs_TB: Inputs, first_TB: jax.Array) -> tuple[Inputs, jax.Array]:
        """The memory after T steps, and what the core says at each of them (T, B, H), under a tree of parameters."""
        params, (length, batch) = self.in_precision(params), first_TB.shape
        flat = jax.tree.map(lambda leaf: leaf.reshape(length * batch, *leaf.shape[2:]), obs_TB)
        x_TBF = self._torso.apply(params["torso"], flat, ACTING).reshape(length, batch, -1)
        return self._core.unroll(params["core"], memory_B, x_TBF, first_TB)

    def learned_q(self, params: Params, batch: Sequences[jax.Array]) -> jax.Array:
        """Q-values (L + 1, B, A) of the steps behind the burn-in, which has no gradient."""
        obs_SB, first_SB = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), (batch.obs, batch.first))
        memory_B, burn_in = batch.memory, self._burn_in
        if burn_in:
            early = jax.tree.map(lambda leaf: leaf[:burn_in], (obs_SB, first_SB))
            memory_B, _ = self.unroll(jax.lax.stop_gradient(params), memory_B, *early)
        late = jax.tree.map(lambda leaf: leaf[burn_in:], (obs_SB, first_SB))
        _, y_TBH = self.unroll(params, memory_B, *late)
        length, size = y_TBH.shape[:2]
        q = self._outputs.apply(self.in_precision(params["head"]), y_TBH.reshape(length * size, -1), ACTING).values
        return q.astype(jnp.float32).reshape(length, size, self.num_actions)

    def update(
        self,
        state: LearnerState,
        batches: Batch,
        learning_rate: jax.Array,
        weight_KB: jax.Array | None = None,
        key: jax.Array | None = None,
        draws_K: Draws[jax.Array] | None = None,
    ) -> tuple[LearnerState, jax.Array, jax.Array]:
        """K gradient steps on K batches of sequences (K, B, …); returns TD errors (K, B, L) and METRICS sums."""
        del weight_KB, key, draws_K
        batches = cast(Sequences[jax.Array], batches)
        # Of the whole batch, before it may be split into parts.
        state, td, sums = super().update(state, batches, learning_rate, mean_of_known(batches.truncated))
        return state, td.reshape(batches.r_t.shape), sums

    def target_outputs(
        self, target: jax.Array, batch: Batch, draws: Draws[jax.Array] | None = None
    ) -> TargetOutputs[jax.Array]:
        """What the target net, with a memory of its own, says of the next states: (B, L, A)."""
        del draws
        if not self.has_target:
            return TargetOutputs(None, None)
        return TargetOutputs(
            self.learned_q(self.layout.unflatten(target), cast(Sequences[jax.Array], batch))[1:].swapaxes(0, 1), None
        )

    def loss(
        self,
        params: Params,
        batch: Batch,
        outputs: TargetOutputs[jax.Array],
        weight_B: jax.Array | None = None,
        draws: Draws[jax.Array] | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Mean loss of the learned steps of one batch; beside it TD errors (B, L) and the mean Q-value.

        `weight_B` is that of each step (B, L).
        """
        del draws
        maths, rule, batch = self._estimates, self.spec.target.rule, cast(Sequences[jax.Array], batch)
        q_BTA = self.learned_q(params, batch).swapaxes(0, 1)
        flat = batch.r_t.size
        q_t = jax.lax.stop_gradient(q_BTA[:, 1:]).reshape(flat, -1)  # one unroll serves both sides
        values_t = q_t if rule == "vanilla" else outputs.values_t.reshape(flat, -1)  # type: ignore[union-attr]
        z_t = targets.best_value(values_t, values_t if rule == "target" else q_t, xp=jnp)
        target = jax.lax.stop_gradient(maths.target(batch.r_t.reshape(-1), batch.discount_t.reshape(-1), z_t))
        z = targets.value_of(q_BTA[:, :-1].reshape(flat, -1), batch.a_tm1.reshape(-1), xp=jnp)
        loss, td = maths.loss(z, None, target)
        weight_BL = mean_of_known(batch.truncated) if weight_B is None else weight_B
        return jnp.mean(weight_BL.reshape(-1) * loss), (td.reshape(batch.r_t.shape), jnp.mean(z))


def mean_of_known(truncated_BL: jax.Array) -> jax.Array:
    """Weights (…, B, L) that turn a mean over all steps into one over those whose next observation is known."""
    known_BL = 1.0 - truncated_BL.astype(jnp.float32)
    share = jnp.mean(known_BL, axis=(-2, -1), keepdims=True)
    return known_BL / jnp.where(share > 0, share, 1.0)
