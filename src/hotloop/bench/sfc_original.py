"""The multi-branch attention network of `sfc` in plain PyTorch, and its gradient step, as most DQN code has them."""

import torch
from torch import nn

BRANCH, ATTENTION, ACTIONS = 64, 128, 13
ROWS, SERVICE_SIZE, PENDING_SIZE, DC_SIZE = 6, 13, 10, 14
DISCOUNT, LEARNING_RATE = 0.99, 1e-4

Batch = tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]
"""s_tm1, a_tm1, r_t, discount_t, s_t."""


class AttentionNet(nn.Module):
    """Three branches, additive attention over them, dense layers: 177,294 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.dc = nn.Sequential(nn.Linear(DC_SIZE, 128), nn.ReLU(), nn.Linear(128, BRANCH), nn.ReLU())
        self.services, self.pending = _rows(SERVICE_SIZE), _rows(PENDING_SIZE)
        self.inner, self.outer = nn.Linear(BRANCH, ATTENTION), nn.Linear(ATTENTION, 1)
        layers: list[nn.Module] = []
        for wide, next_wide in ((4 * BRANCH, 256), (256, 128), (128, 64)):
            layers += [nn.Linear(wide, next_wide), nn.ReLU()]
        self.joined = nn.Sequential(*layers, nn.Linear(64, ACTIONS))

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Q-values (B, 13)."""
        each = [self.dc(obs["dc"]), self.services(obs["dc_services"]), self.pending(obs["pending"])]
        sequence = torch.stack(each, dim=1)
        share = torch.softmax(self.outer(torch.tanh(self.inner(sequence))), dim=1)
        context = (share * sequence).sum(dim=1)
        q: torch.Tensor = self.joined(torch.cat([*each, context], dim=1))
        return q


class AttentionLearner:
    """Online net, target net, Adam: one gradient step at a time."""

    def __init__(self) -> None:
        self.online, self.target = AttentionNet(), AttentionNet()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=LEARNING_RATE, fused=True)

    def learn(self, batch: Batch) -> torch.Tensor:
        """One gradient step; returns the loss."""
        s_tm1, a_tm1, r_t, discount_t, s_t = batch
        with torch.no_grad():
            goal = r_t + discount_t * self.target(s_t).max(1).values
        q = self.online(s_tm1).gather(1, a_tm1[:, None])[:, 0]
        loss = nn.functional.mse_loss(q, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def _rows(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, BRANCH), nn.ReLU(), nn.Flatten(), nn.Linear(ROWS * BRANCH, BRANCH), nn.ReLU())
