"""From features to Q-values."""

import jax

from hotloop.engines.jax.modules import Functions, Params, dense_layers
from hotloop.spec import DuelingHead, ScalarHead


def scalar(spec: ScalarHead, num_actions: int) -> Functions:
    """One Q-value per action."""
    del spec
    return dense_layers([num_actions], None, activate_last=False)


def dueling(spec: DuelingHead, num_actions: int) -> Functions:
    """Q = V + A - mean(A): the state's value is learned from every action."""
    value = dense_layers([*spec.hidden, 1], "relu", activate_last=False)
    advantage = dense_layers([*spec.hidden, num_actions], "relu", activate_last=False)

    def init(key: jax.Array, features_BF: jax.Array) -> Params:
        value_key, advantage_key = jax.random.split(key)
        return {
            "value": value.init(value_key, features_BF),
            "advantage": advantage.init(advantage_key, features_BF),
        }

    def apply(params: Params, features_BF: jax.Array) -> jax.Array:
        advantage_BA = advantage.apply(params["advantage"], features_BF)
        return value.apply(params["value"], features_BF) + advantage_BA - advantage_BA.mean(-1, keepdims=True)

    return Functions(init, apply)
