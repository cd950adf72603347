"""One thing after the other: act, step, insert; then sample, learn. Deterministic: the reference for host envs."""

from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.device import DeviceEnv
from hotloop.envs.host import HostEnvs
from hotloop.pipelines.host_session import HostPipeline, HostSession
from hotloop.pipelines.stepwise import Stepwise
from hotloop.spec import Spec


def pipeline(spec: Spec, envs: HostEnvs | DeviceEnv, engine: JaxEngine) -> HostPipeline | Stepwise:
    """The sync pipeline of one spec."""
    return HostPipeline(spec, envs, engine, block) if isinstance(envs, HostEnvs) else Stepwise(spec, envs, engine)


def block(run: HostSession) -> None:
    """q vector steps with the weights of the block's start, then the p gradient steps they have earned."""
    run.collect()
    batches = run.sample()
    if batches is not None:
        run.publish(run.learn(batches))
