"""Training actions on the host: Q-values of a policy, and chance."""

import numpy as np

from hotloop.engines.draws import Draw, draw
from hotloop.engines.protocol import Policy
from hotloop.learning import exploration, schedules, targets
from hotloop.spec import EpsilonGreedy, Spec
from hotloop.trees import Arrays, Tree


class Explorer:
    """Turns Q-values and chance into training actions."""

    def __init__(self, spec: Spec, wanted: Tree[Draw], power: float = 1.0) -> None:
        """`wanted` is what the policy takes of chance; `power` is that to which ε is raised."""
        self.wanted, self._power = wanted, power
        self._schedule = spec.exploration_schedule.model_dump()
        self._is_epsilon_greedy = isinstance(spec.exploration, EpsilonGreedy)
        self._explores_together = isinstance(spec.exploration, EpsilonGreedy) and spec.exploration.together

    def q_values(self, policy: Policy, obs_N: Arrays, random: np.random.Generator) -> np.ndarray:
        """Q-values (N, A), of a noisy draw if the network is noisy."""
        return policy(obs_N, draw(self.wanted, random)) if self.wanted else policy(obs_N)

    def actions(
        self, policy: Policy, obs_N: Arrays, legal_NA: np.ndarray | None, env_steps: int, random: np.random.Generator
    ) -> np.ndarray:
        """An action of each env, int32 (N,); ε or the temperature is that of `env_steps`."""
        q_NA = targets.legal_only(self.q_values(policy, obs_N, random), legal_NA, xp=np)
        explore = schedules.value_at(env_steps, xp=schedules.Scalars, **self._schedule)
        if self._is_epsilon_greedy:
            coin_N, draw_N = random.random((2, len(q_NA)))
            if self._explores_together:
                coin_N[:] = coin_N[0]
            is_masked = legal_NA is not None
            action_N = exploration.epsilon_greedy(
                q_NA, explore**self._power, coin_N, draw_N, is_masked=is_masked, xp=np
            )
        else:
            action_N = exploration.boltzmann(q_NA, explore, random.gumbel(size=q_NA.shape), xp=np)
        return action_N.astype(np.int32)
