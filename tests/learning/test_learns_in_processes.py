"""CartPole is solved by a learner whose actors are killed at random, all the time."""

import os
import random
import signal
import threading

import pytest

import hotloop
from hotloop.progress import Silent
from process_tree import actors_of


class Quiet(Silent):
    """Does not warn of the kills."""

    def warn(self, text):
        pass


@pytest.mark.heavy
def test_cartpole_is_solved_while_actors_are_killed(tmp_path):
    over, chance, killed = threading.Event(), random.Random(5), []

    def kill():
        while not over.wait(3.0 + 3.0 * chance.random()):
            if pids := [actor.pid for actor in actors_of()]:
                killed.append(chance.choice(pids))
                os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        overrides = {"env.id": "CartPole-v1", "pipeline": "processes", "actors.count": 2, "stop.return_at_least": 475}
        overrides |= {"actors.tries": 50, "stop.steps": 150_000}
        run = hotloop.train("cartpole", out=tmp_path / "run", reporter=Quiet(), **overrides)
    finally:
        over.set()
        killer.join()
    assert run.return_mean >= 475
    assert len(killed) >= 2
    assert "was killed by SIGKILL" in (tmp_path / "run" / "notices.log").read_text()
