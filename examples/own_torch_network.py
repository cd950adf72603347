"""Train CartPole with a network of your own: any torch.nn.Module that gives one Q-value per action."""

import torch
from torch import nn

import hotloop


class Wide(nn.Module):
    """Two wide layers with layer normalisation between them."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        """Map observations (B, 4) to Q-values (B, 2)."""
        return self.layers(obs_B)


if __name__ == "__main__":
    run = hotloop.train("cartpole", engine="torch", network=Wide)  # the class, or an instance with weights of its own
    print(run)
    agent = hotloop.load(run, network=Wide)
    print(agent.predict([0.0, 0.0, 0.05, 0.0]), agent.evaluate(episodes=20))
