"""One thing after the other: act, step, insert; then sample, learn. Deterministic: the reference for host envs."""

from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.device import DeviceEnv
from hotloop.envs.host import HostEnvs
from hotloop.pipelines.host_run import HostPipeline, HostRun
from hotloop.pipelines.stepwise import Stepwise
from hotloop.spec import Spec


def pipeline(spec: Spec, envs: HostEnvs | DeviceEnv, engine: JaxEngine) -> HostPipeline | Stepwise:
    """The sync pipeline of one spec; on a device env it is the fused one, stage by stage."""
    if isinstance(envs, HostEnvs):
        return HostPipeline(spec, envs, engine.on_host(), block)
    return Stepwise(spec, envs, engine)


def block(run: HostRun) -> None:
    """q vector steps with the weights of the block's start, then the p gradient steps they have earned."""
    run.collect()
    if run.learner.takes_turn():
        drawn = run.learner.draw(run.env_steps)
        run.publish(run.learner.learn(drawn))
