"""The six DQN specs whose scores SLM-Lab publishes: their settings as a table, and each in SLM-Lab's own form.

All have a target net that is copied, lets the online net choose (also what is called DQN there, since version 5), a
linear decay from 1, four sessions, and learn from every frame that is stored after 32. Figures: SLM-Lab 5.
"""

from typing import NamedTuple

START = 32
"""Frames before the first gradient step."""
SESSIONS = 4


class Settings(NamedTuple):
    """What differs between the six, and the score that is published: the mean return at the end of training."""

    env_id: str
    num_envs: int
    frames: int
    published: float
    hidden: tuple[int, int]
    activation: str
    clip: float
    optimizer: str
    learning_rate: float
    discount: float
    target_every: int
    batch_size: int
    batches: int  # of a train call
    steps_on_each: int
    has_priorities: bool
    has_newest: bool  # what came since the last draw ends the next batch
    is_boltzmann: bool
    explore_end: float  # ε or the temperature, from 1
    explore_frames: int
    log_every: int = 500
    capacity: int = 50_000

    @property
    def updates_per_call(self) -> int:
        """Gradient steps of a train call."""
        return self.batches * self.steps_on_each


_CARTPOLE = Settings(
    *("CartPole-v1", 4, 200_000, 239.9, (256, 128), "selu", 0.55, "AdamW", 3e-4, 0.995, 75, 64, 2, 2),
    *(False, True, True, 0.08, 12_000),
)
_ACROBOT = Settings(
    *("Acrobot-v1", 4, 300_000, -94.0, (128, 128), "relu", 1.0, "Adam", 6e-4, 0.985, 100, 64, 2, 2),
    *(False, True, False, 0.084, 30_000),
)
_LUNAR = Settings(
    *("LunarLander-v3", 8, 300_000, 195.2, (256, 128), "relu", 10.0, "AdamW", 7.24e-4, 0.982, 100, 32, 4, 1),
    *(False, False, False, 0.039, 50_000, 1_000),
)
SETTINGS = {
    "dqn_boltzmann_cartpole": _CARTPOLE,
    "ddqn_per_boltzmann_cartpole": _CARTPOLE._replace(published=451.5, has_priorities=True),
    "dqn_boltzmann_acrobot": _ACROBOT,
    "ddqn_per_acrobot": _ACROBOT._replace(
        published=-84.0,
        learning_rate=5e-4,
        discount=0.99,
        batch_size=32,
        has_priorities=True,
        has_newest=False,
        explore_end=0.01,
        explore_frames=10_000,
    ),
    "dqn_concat_lunar": _LUNAR,
    "ddqn_per_concat_lunar": _LUNAR._replace(
        published=265.9, learning_rate=2.5e-4, discount=0.99, has_priorities=True, explore_end=0.01
    ),
}


def in_slm_lab_form(name: str) -> dict[str, object]:
    """One of the six as SLM-Lab reads it."""
    each = SETTINGS[name]
    kind = "DoubleDQN" if each.has_priorities else "DQN"
    memory: dict[str, object] = {
        "name": "PrioritizedReplay" if each.has_priorities else "Replay",
        **({"alpha": 0.6, "epsilon": 1e-4} if each.has_priorities else {}),
        "batch_size": each.batch_size,
        "max_size": each.capacity,
        "use_cer": each.has_newest,
    }
    return {
        "agent": {
            "name": kind,
            "algorithm": {
                "name": kind,
                "action_pdtype": "Categorical" if each.is_boltzmann else "Argmax",
                "action_policy": "boltzmann" if each.is_boltzmann else "epsilon_greedy",
                "explore_var_spec": {
                    "name": "linear_decay",
                    "start_val": 1.0,
                    "end_val": each.explore_end,
                    "start_step": 0,
                    "end_step": each.explore_frames,
                },
                "gamma": each.discount,
                "training_frequency": 1,
                "training_start_step": START,
                "training_iter": each.batches,
                "training_batch_iter": each.steps_on_each,
            },
            "memory": memory,
            "net": {
                "type": "MLPNet",
                "hid_layers": list(each.hidden),
                "hid_layers_activation": each.activation,
                "clip_grad_val": each.clip,
                "loss_spec": {"name": "SmoothL1Loss"},
                "optim_spec": {"name": each.optimizer, "lr": each.learning_rate},
                "update_type": "replace",
                "update_frequency": each.target_every,
            },
        },
        "env": {"name": each.env_id, "num_envs": each.num_envs, "max_t": None, "max_frame": each.frames},
        "meta": {"distributed": False, "max_session": SESSIONS, "max_trial": 1, "log_frequency": each.log_every},
    }
