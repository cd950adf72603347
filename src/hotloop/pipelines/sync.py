"""One thing after the other: act, step, insert; then sample, learn. Deterministic: the reference for host envs."""

from hotloop.engines.protocol import Engine
from hotloop.envs.host import HostEnvs
from hotloop.pipelines.host_run import HostPipeline, HostRun
from hotloop.pipelines.learning_run import LearningRun
from hotloop.spec import Spec


def pipeline(spec: Spec, envs: HostEnvs, engine: Engine) -> HostPipeline:
    """The sync pipeline of one spec."""
    return HostPipeline(spec, envs, engine, run_block)


def run_block(run: HostRun) -> None:
    """q vector steps with the weights of the block's start, then the p gradient steps they have earned."""
    run.collect()
    learn_if_due(run)


def learn_if_due(run: LearningRun) -> None:
    """The p gradient steps of a block, if its steps have earned them."""
    if run.learner.takes_turn():
        run.learn()
