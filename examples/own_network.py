"""Train a network of your own: any flax linen module that returns one Q-value per action."""

import flax.linen as nn
import jax

import hotloop


class Wide(nn.Module):
    """Two wide layers with layer normalisation between them."""

    hidden: int = 128

    @nn.compact
    def __call__(self, obs_B: jax.Array) -> jax.Array:
        """Map observations (B, 4) to Q-values (B, 2)."""
        x = nn.relu(nn.LayerNorm()(nn.Dense(self.hidden)(obs_B)))
        return nn.Dense(2)(nn.relu(nn.Dense(64)(x)))


if __name__ == "__main__":
    run = hotloop.train("cartpole", network=Wide())
    print(run)
    agent = hotloop.load(run, network=Wide())
    print(agent.predict([0.0, 0.0, 0.05, 0.0]), agent.evaluate(episodes=20))
