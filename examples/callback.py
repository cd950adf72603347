"""Stop when the greedy return has not risen for a while: a listener that keeps count, and a callback that prints."""

import hotloop
from hotloop.listeners import Evaluation, Log


class Plateau(hotloop.Listener):
    """Ends a run after so many evaluations in a row that were not the best."""

    def __init__(self, patience: int) -> None:
        self.patience, self.in_a_row = patience, 0

    def on_evaluation(self, evaluation: Evaluation) -> object:
        """Count, and say when it is enough."""
        self.in_a_row = 0 if evaluation.is_best else self.in_a_row + 1
        return hotloop.STOP if self.in_a_row >= self.patience else None


def say(log: Log) -> None:
    """Print one line."""
    speed, loss = log.figures["env_steps_per_s"], log.figures["loss"]
    print(f"{log.env_steps:>8,} env steps  {speed:>8,.0f} a second  loss {loss}")


if __name__ == "__main__":
    run = hotloop.train("cartpole", out=None, listeners=[Plateau(patience=3)], on_log=say)
    print(run.stopped)
    print(run.agent.evaluate(episodes=20))
