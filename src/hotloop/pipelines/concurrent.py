"""Envs step while the learner learns: on another thread, on batches drawn before, with acting weights that stand still.

| in block b | |
|---|---|
| host loop | draws batches from what blocks 0 … b - 1 collected, then acts and steps with weights θ_b |
| learner, from the draw on | takes the p gradient steps on those batches: θ_b becomes θ_b+1 |

Both are waited for at the end of a block, so two runs of the same seed end in the same bits. Beside `sync` the
gradient steps of a block come one block later, and act one block later; nothing else differs. Where a block draws by
priorities several times, its transitions are stored at its end, so that all draws are from blocks 0 … b - 1.
"""

from concurrent.futures import ThreadPoolExecutor

from hotloop.engines.protocol import Engine
from hotloop.envs.host import HostEnvs
from hotloop.pipelines.host_run import HostPipeline, HostRun
from hotloop.spec import Spec


def pipeline(spec: Spec, envs: HostEnvs, engine: Engine) -> HostPipeline:
    """The concurrent pipeline of one spec."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="learner")

    def run_block(run: HostRun) -> None:
        learner = run.learner
        if not learner.takes_turn():
            run.collect()
            return
        learning = thread.submit(learner.learn, learner.draw(run.env_steps))
        try:
            run.collect(defer=learner.portions > 1)
        finally:
            try:
                run.take_over(learning.result)  # sync
            finally:
                run.store_deferred()

    return HostPipeline(spec, envs, engine, run_block, thread)
