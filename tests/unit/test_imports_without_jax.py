"""What makes and keeps experience on the host starts without an engine: an actor process needs none."""

import subprocess
import sys

MODULES = (
    "hotloop.envs.host",
    "hotloop.envs.check",
    "hotloop.replay.host",
    "hotloop.replay.hindsight",
    "hotloop.replay.packer",
    "hotloop.replay.sum_tree",
    "hotloop.engines.protocol",
    "hotloop.engines.policies",
    "hotloop.evaluate",
    "hotloop.pipelines.actor",
    "hotloop.pipelines.learner",
    "hotloop.pipelines.first_errors",
    "hotloop.pipelines.host_run",
    "hotloop.transport.exchange",
)


def test_host_envs_replay_actor_and_learner_import_neither_jax_nor_torch() -> None:
    program = f"import sys, {', '.join(MODULES)}\nprint([name for name in ('jax', 'torch') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
