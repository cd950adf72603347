"""Training, resuming, loading: the host's side of a run.

`train` wires spec, env, engine and pipeline together and drives the compiled program in chunks of about half
a second. Between chunks the host logs, evaluates, saves, and looks whether someone pressed Ctrl-C. Nothing
it does changes what the program computes: an interrupted and resumed run ends in the same bits.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.progress import Reporter, Silent
from hotloop.registry import ENGINES, PIPELINES
from hotloop.registry import load as load_registered
from hotloop.spec import CustomNetwork, Spec
from hotloop.spec_reading import SpecError, load_spec

if TYPE_CHECKING:
    import numpy as np

SECONDS_PER_CHUNK = 0.5


class Diverged(Exception):
    """Too many updates in a row were not finite."""


class Run:
    """A finished (or stopped) run: its folder and its figures."""

    def __init__(self, path: Path, result: dict[str, Any]) -> None:
        self.path = path
        self.result = result

    def __getattr__(self, name: str) -> Any:
        """Figures are attributes: `run.env_steps`, `run.return_mean`."""
        if name in self.__dict__.get("result", {}):
            return self.result[name]
        raise AttributeError(f"a run has no '{name}'; it has {', '.join(self.__dict__.get('result', {}))}")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, env_steps={self.env_steps}, return_mean={self.return_mean})"


def train(
    spec: "str | Path | Mapping[str, Any] | Spec",
    *,
    out: str | Path | None = None,
    network: Any = None,
    reporter: Reporter | None = None,
    **overrides: Any,
) -> Run:
    """Train from a preset's name, a file, a mapping or a Spec; overrides are fields or dotted paths.

    `network` is a module of your own with `init(key, obs_B)` and `apply(params, obs_B) -> q_BA` (any flax
    linen module has both).
    """
    parsed = _with_network(load_spec(spec, overrides), network)
    from hotloop.runs.folder import RunFolder

    folder = RunFolder.choose(parsed, Path(out) if out is not None else None)
    return _Session(parsed, folder, network, reporter or Silent()).train()


def resume(
    run: "str | Path | Run", *, steps: int | None = None, network: Any = None, reporter: Reporter | None = None
) -> Run:
    """Continue a run from its newest whole checkpoint; `steps` moves its end."""
    from hotloop.runs.folder import RunFolder

    folder = RunFolder.open(run.path if isinstance(run, Run) else run)
    spec = _with_network(load_spec(folder.read_spec(), {"stop.steps": steps} if steps else None), network)
    return _Session(spec, folder, network, reporter or Silent()).resume()


def load(run: "str | Path | Run", *, which: str = "best", network: Any = None) -> "Agent":
    """Load the trained agent of a run: the best evaluated weights, or the `last`."""
    from hotloop.runs.folder import RunFolder

    folder = RunFolder.open(run.path if isinstance(run, Run) else run)
    spec = _with_network(folder.read_spec(), network)
    return Agent(_Parts(spec, network), folder, which)


def plan(spec: Spec) -> Any:
    """Return the memory plan of a spec, without allocating anything."""
    return _Parts(spec, None).memory_plan()


class _Parts:
    """Env, engine and pipeline of a spec, wired together."""

    def __init__(self, spec: Spec, network: Any) -> None:
        from hotloop.engines.jax import setup

        self.machine = setup.start(spec)
        import jax

        from hotloop.envs.device import make_env

        self.spec = spec
        self.env = make_env(spec.env.id, spec.env.options)
        obs = jax.ShapeDtypeStruct(self.env.obs_spec.shape, self.env.obs_spec.dtype)
        try:
            self.engine = load_registered(ENGINES, spec.engine, "engine")(spec, obs, self.env.num_actions, network)
        except ValueError as error:
            raise SpecError(f"network: {error}") from None
        name = "fused" if spec.pipeline == "auto" else spec.pipeline
        self.pipeline_reason = f"{name} ({'the env is a device env' if spec.pipeline == 'auto' else 'as asked'})"
        self.pipeline = load_registered(PIPELINES, name, "pipeline")(spec, self.env, self.engine)

    def memory_plan(self) -> Any:
        from hotloop.engines.jax.setup import device_memory_available
        from hotloop.replay.plan import MemoryPlan, available_host_memory

        block, size = self.spec.block, self.engine.layout.size
        row = self.pipeline.num_bytes() // self.pipeline.capacity
        parts = {
            f"replay of {self.pipeline.capacity:,} transitions": self.pipeline.num_bytes(),
            "weights, target, moments, gradient": 5 * 4 * size,
            f"{block.updates} sampled batches": 2 * block.updates * self.spec.replay.batch_size * row,
        }
        return MemoryPlan(parts, device_memory_available(available_host_memory()))

    def state_template(self) -> Any:
        import jax
        import jax.numpy as jnp

        return jax.eval_shape(self.pipeline.init, jnp.uint32(self.spec.seed))


class Agent:
    """A trained agent."""

    def __init__(self, parts: _Parts, folder: Any, which: str) -> None:
        if which not in ("best", "last"):
            raise SpecError(f"which is '{which}', expected best or last")
        self.spec, self.env, self.engine = parts.spec, parts.env, parts.engine
        named, self.facts = folder.weights(which)
        try:
            self.params = self.engine.layout.from_named(named)
        except ValueError as error:
            raise SpecError(f"{folder.path}: {error}") from None
        import jax

        self._greedy = jax.jit(self.engine.greedy)
        self._act = jax.jit(self.engine.act)
        self._q_values = jax.jit(self.engine.q_values)
        self._key = jax.random.key(parts.spec.seed)

    def predict(self, obs: Any, deterministic: bool = True) -> Any:
        """Action for one observation (an int), or for a batch of them (an array). Not deterministic explores."""
        import jax
        import jax.numpy as jnp
        import numpy as np

        obs_B, is_single = self._batch(obs)
        if deterministic:
            actions = np.asarray(self._greedy(self.params, obs_B))
        else:
            self._key, key = jax.random.split(self._key)
            explore = self.engine.exploration(jnp.full(obs_B.shape[:1], self.spec.stop.steps, jnp.int32))
            actions = np.asarray(self._act(self.params, obs_B, explore, key))
        return int(actions[0]) if is_single else actions

    def q_values(self, obs: Any) -> "np.ndarray":
        """Q-values of one observation (A,), or of a batch (B, A)."""
        import numpy as np

        obs_B, is_single = self._batch(obs)
        q_BA = np.asarray(self._q_values(self.params, obs_B))
        return q_BA[0] if is_single else q_BA

    def evaluate(self, episodes: int = 100, seed: int = 0) -> dict[str, float]:
        """Play greedy episodes; returns their figures."""
        import jax

        from hotloop.evaluate import episodes_program, to_host

        run = jax.jit(episodes_program(self.env, self.engine, episodes, self.spec.evaluation.max_steps))
        return to_host(run(self.params, jax.random.key(seed))).summary()

    def record(self, path: str | Path, seed: int = 0) -> Path:
        """Write a GIF of one greedy episode."""
        import jax

        from hotloop.evaluate import record
        from hotloop.runs.pictures import write_gif

        if not hasattr(self.env, "render"):
            raise SpecError(f"env {self.spec.env.id} cannot draw itself; there is nothing to record")
        frames = record(self.env, self.engine, self.params, jax.random.key(seed), self.spec.evaluation.max_steps, 2)
        return write_gif(frames, Path(path), self.env.render_fps / 2)

    def _batch(self, obs: Any) -> tuple[Any, bool]:
        import numpy as np

        spec = self.env.obs_spec
        array = np.asarray(obs, spec.dtype)
        if array.shape == spec.shape:
            return array[None], True
        if array.shape[1:] == spec.shape:
            return array, False
        raise ValueError(f"observation has shape {array.shape}, expected {spec.shape} or a batch of it")


class _Session:
    """One training session: everything the host does around the compiled program."""

    def __init__(self, spec: Spec, folder: Any, network: Any, reporter: Reporter) -> None:
        self.spec, self.folder, self.network, self.reporter = spec, folder, network, reporter
        self.began = time.perf_counter()

    def train(self) -> Run:
        self._build()
        self.folder.create(self.spec, {"machine": self.parts.machine, "pipeline": self.parts.pipeline_reason})
        self._compile()
        self.state = self._init(self.seed)
        return self._drive(resumed_at=None)

    def resume(self) -> Run:
        arrays, facts = self.folder.newest_checkpoint(self.reporter.warn)
        self._build()
        self._compile()
        from hotloop.runs.state import from_arrays

        try:
            self.state = from_arrays(self.parts.state_template(), arrays)
        except ValueError as error:
            raise SpecError(f"{self.folder.path}: {error}") from None
        self.best = facts.get("best", {}).get("return_mean")
        self.last_evaluation = facts.get("evaluation")
        self.reporter.say(f"resuming {self.folder.path} at env step {int(self.state.env_steps):,}")
        return self._drive(resumed_at=int(self.state.env_steps))

    # -- before the first chunk ---------------------------------------------------------------------

    def _build(self) -> None:
        with self.reporter.busy("starting XLA"):
            self.parts = _Parts(self.spec, self.network)
        self.pipeline, self.engine = self.parts.pipeline, self.parts.engine
        plan = self.parts.memory_plan()
        spec, block = self.spec, self.spec.block
        self.reporter.say(
            f"{spec.name}: {spec.env.id} x{spec.env.num_envs}, replay ratio {spec.updates_per_step:g} "
            f"({block.updates} update(s) per {block.vector_steps} vector step(s)), batch {spec.replay.batch_size}, "
            f"{self.engine.layout.size:,} weights, seed {spec.seed}"
        )
        self.reporter.say(
            f"pipeline: {self.parts.pipeline_reason}; device: {self.parts.machine['device']}, "
            f"threads: {self.parts.machine['threads']}"
        )
        self.reporter.say(str(plan))
        refusal = plan.refusal()
        if refusal:
            raise SpecError(refusal)
        if self.pipeline.capacity != spec.replay.capacity:
            self.reporter.say(
                f"replay.capacity {spec.replay.capacity:,} rounded down to {self.pipeline.capacity:,}, "
                f"a whole number of blocks of {block.env_steps:,} transitions"
            )
        self.best: float | None = None
        self.last_evaluation: dict[str, float] | None = None

    def _compile(self) -> None:
        import jax
        import jax.numpy as jnp

        from hotloop.evaluate import episodes_program

        started = time.perf_counter()
        self.seed = jnp.uint32(self.spec.seed)
        key = jax.random.key(self.spec.seed)
        with self.reporter.busy("compiling"):
            state = self.parts.state_template()
            self._init = jax.jit(self.pipeline.init).lower(self.seed).compile()
            self._advance = jax.jit(self.pipeline.advance, donate_argnums=0).lower(state, jnp.int32(1)).compile()
            self._evaluate: Any = None
            if self.spec.evaluation.every:
                program = episodes_program(
                    self.parts.env, self.engine, self.spec.evaluation.episodes, self.spec.evaluation.max_steps
                )
                self._evaluate = jax.jit(program).lower(state.learner.params, key).compile()
        self.compile_seconds = time.perf_counter() - started

    # -- the host loop ------------------------------------------------------------------------------

    def _drive(self, resumed_at: int | None) -> Run:
        from hotloop.runs.metrics import Metrics

        self.metrics = Metrics(self.folder.path, resumed_at)
        self.clock = _Clock()
        self.checkpoint_error: str | None = None
        spec, block_steps = self.spec, self.spec.block.env_steps
        pace = 1
        with _Interrupts() as interrupts:
            host = self._read()
            while True:
                before = host["env_steps"]
                stop = self._reason_to_stop(host) or interrupts.seen
                if stop:
                    break
                goals = [spec.stop.steps, _next(before, spec.log.every), _next(before, spec.log.checkpoint_every)]
                if spec.evaluation.every:
                    goals.append(_next(before, spec.evaluation.every))
                blocks = min(pace, max(1, -(-(min(goals) - before) // block_steps)))
                started = time.perf_counter()
                self.state = self._advance(self.state, blocks)
                host = self._read()
                seconds = time.perf_counter() - started
                self.clock.add(host, before, seconds)
                pace = _new_pace(pace, blocks, seconds)
                self._guard(host)
                if _crossed(before, host["env_steps"], spec.log.every):
                    self._log(host)
                    self._reset_totals()
                if spec.evaluation.every and _crossed(before, host["env_steps"], spec.evaluation.every):
                    self._run_evaluation(host)
                if _crossed(before, host["env_steps"], spec.log.checkpoint_every):
                    self._checkpoint(host)
                self._show(host)
            return self._finish(host, stop)

    def _finish(self, host: dict[str, Any], stop: str) -> Run:
        self._log(host)
        evaluated_at = (self.last_evaluation or {}).get("env_steps")
        if self._evaluate is not None and evaluated_at != host["env_steps"] and not stop.startswith("SIG"):
            self._run_evaluation(host)
        self._checkpoint(host)
        self._save_weights("last", host)
        self.metrics.close()
        result = self._result(host, stop)
        self._pictures(stop)
        result["seconds"] = round(time.perf_counter() - self.began, 3)
        return Run(self.folder.path, result)

    def _read(self) -> dict[str, Any]:
        """Bring the few numbers the host needs over: the only sync of a chunk."""
        import jax

        state = self.state
        small = jax.device_get(  # sync
            {
                "blocks": state.blocks,
                "env_steps": state.env_steps,
                "episodes": state.episodes,
                "learned_from": state.learned_from,
                "updates": state.learner.updates,
                "skipped": state.learner.skipped,
                "skipped_in_a_row": state.learner.skipped_in_a_row,
                "totals": state.totals,
            }
        )
        return {name: value if name == "totals" else int(value) for name, value in small.items()}

    def _reason_to_stop(self, host: dict[str, Any]) -> str | None:
        stop = self.spec.stop
        if (
            stop.return_at_least is not None
            and self.last_evaluation
            and self.last_evaluation["return_mean"] >= stop.return_at_least
        ):
            return f"solved: mean return {self.last_evaluation['return_mean']:.1f} >= {stop.return_at_least:g}"
        if host["env_steps"] >= stop.steps:
            return f"{host['env_steps']:,} env steps done"
        if stop.episodes is not None and host["episodes"] >= stop.episodes:
            return f"{host['episodes']:,} episodes done"
        return None

    def _guard(self, host: dict[str, Any]) -> None:
        if host["skipped_in_a_row"] < self.spec.guard.skips_in_a_row:
            return
        from hotloop.runs import checkpoint
        from hotloop.runs.state import to_arrays

        where = checkpoint.save(self.folder.dump, to_arrays(self.state), {"env_steps": host["env_steps"]})
        self._log(host)
        self.metrics.close()
        raise Diverged(
            f"{host['skipped_in_a_row']} updates in a row had a loss or gradient that is not finite, at env step "
            f"{host['env_steps']:,}; weights are those before them, the state is in {where}. "
            "Try a lower optimizer.learning_rate, or look for huge rewards"
        )

    def _log(self, host: dict[str, Any]) -> None:
        self._try("metrics", lambda: self.metrics.write("train", host["env_steps"], self._figures(host)))

    def _figures(self, host: dict[str, Any]) -> dict[str, Any]:
        import jax.numpy as jnp

        loss, grad_norm, q, applied = (float(x) for x in host["totals"].update)
        episodes = int(host["totals"].episodes)
        steps = jnp.int32(host["env_steps"])
        explore = "epsilon" if self.spec.exploration.kind == "epsilon_greedy" else "temperature"
        return {
            "seconds": round(time.perf_counter() - self.began, 3),
            "env_steps_per_s": round(self.clock.recent_steps_per_s, 1),
            "updates_per_s": round(self.clock.recent_updates_per_s, 1),
            "updates": host["updates"],
            "skipped": host["skipped"],
            "episodes": host["episodes"],
            "ep_return_mean": float(host["totals"].episode_return) / episodes if episodes else None,
            "ep_length_mean": float(host["totals"].episode_length) / episodes if episodes else None,
            "loss": loss / applied if applied else None,
            "grad_norm": grad_norm / applied if applied else None,
            "q_mean": q / applied if applied else None,
            explore: float(self.engine.exploration(steps)),
            "learning_rate": float(self.engine.learning_rate(steps)),
        }

    def _reset_totals(self) -> None:
        from hotloop.pipelines.fused import no_totals

        self.state = self.state._replace(totals=no_totals())

    def _run_evaluation(self, host: dict[str, Any]) -> None:
        import jax

        from hotloop.evaluate import to_host

        key = jax.random.fold_in(jax.random.key(self.spec.seed), host["env_steps"])
        summary = to_host(self._evaluate(self.state.learner.params, key)).summary()
        self.last_evaluation = {"env_steps": host["env_steps"], **summary}
        self._try("metrics", lambda: self.metrics.write("eval", host["env_steps"], summary))
        self.reporter.say(
            f"step {host['env_steps']:>9,}  greedy return {summary['return_mean']:.1f} ± {summary['return_std']:.1f} "
            f"over {summary['episodes']:.0f} episodes"
        )
        if self.best is None or summary["return_mean"] > self.best:
            self.best = summary["return_mean"]
            self._save_weights("best", host)

    def _save_weights(self, which: str, host: dict[str, Any]) -> None:
        from hotloop.runs import checkpoint

        named = self.engine.layout.to_named(self.state.learner.params)
        facts = {"env_steps": host["env_steps"], "updates": host["updates"], "evaluation": self.last_evaluation}
        self._try(f"{which} weights", lambda: checkpoint.save(self.folder.path / which, named, facts))

    def _checkpoint(self, host: dict[str, Any]) -> None:
        from hotloop.runs import checkpoint
        from hotloop.runs.state import digests, to_arrays

        arrays = to_arrays(self.state)
        facts = {
            "env_steps": host["env_steps"],
            "updates": host["updates"],
            "evaluation": self.last_evaluation,
            "best": {"return_mean": self.best},
            "digests": digests(arrays),
        }
        where = self.folder.checkpoints / f"{host['env_steps']:012d}"
        if self._try("checkpoint", lambda: checkpoint.save(where, arrays, facts)):
            checkpoint.prune(self.folder.checkpoints, self.spec.log.checkpoints)

    def _try(self, what: str, write: Callable[[], Any]) -> bool:
        """Do something with the disk; a full or read-only disk is said, and training goes on."""
        try:
            write()
        except OSError as error:
            self.checkpoint_error = f"{what} could not be written: {error}"
            self.reporter.warn(f"{self.checkpoint_error}; training goes on, nothing older was removed")
            return False
        return True

    def _show(self, host: dict[str, Any]) -> None:
        figures = self._figures(host)
        self.reporter.show(
            host["env_steps"],
            self.spec.stop.steps,
            {
                "steps/s": figures["env_steps_per_s"],
                "updates/s": figures["updates_per_s"],
                "return": self.last_evaluation["return_mean"] if self.last_evaluation else figures["ep_return_mean"],
                "ε": figures.get("epsilon"),
                "temperature": figures.get("temperature"),
                "loss": figures["loss"],
            },
        )

    def _result(self, host: dict[str, Any], stop: str) -> dict[str, Any]:
        learned_steps = host["env_steps"] - host["learned_from"] + self.spec.block.env_steps
        train_return = self._figures(host)["ep_return_mean"]
        return {
            "run": str(self.folder.path),
            "env_steps": host["env_steps"],
            "updates": host["updates"],
            "updates_per_step": round(host["updates"] / learned_steps, 6) if host["learned_from"] else 0.0,
            "env_steps_per_s": round(self.clock.steps_per_s, 1),
            "updates_per_s": round(self.clock.updates_per_s, 1),
            "seconds": 0.0,
            "compile_seconds": round(self.compile_seconds, 3),
            "return_mean": self.last_evaluation["return_mean"] if self.last_evaluation else train_return,
            "episodes": host["episodes"],
            "steps_per_episode": round(host["env_steps"] / host["episodes"], 2) if host["episodes"] else None,
            "skipped": host["skipped"],
            "stopped": stop,
            "disk_error": self.checkpoint_error,
        }

    def _pictures(self, stop: str) -> None:
        if stop.startswith("SIG"):
            return
        from hotloop.runs.pictures import draw_curve

        with self.reporter.busy("drawing"):
            self._try("curve.png", lambda: draw_curve(self.folder.path, self.spec))
            if hasattr(self.parts.env, "render"):
                agent = load(self.folder.path, which="best" if self.best is not None else "last", network=self.network)
                self._try("recording.gif", lambda: agent.record(self.folder.recording, self.spec.seed))


class _Clock:
    """Speed of training alone: chunks after the first update, without evaluation, saving and compilation."""

    def __init__(self) -> None:
        self.steps = self.updates = 0
        self.seconds = self.recent_steps_per_s = self.recent_updates_per_s = 0.0
        self._updates_seen: int | None = None

    def add(self, host: dict[str, Any], steps_before: int, seconds: float) -> None:
        attempted = host["updates"] + host["skipped"]
        updates = attempted - (attempted if self._updates_seen is None else self._updates_seen)
        steps = host["env_steps"] - steps_before
        self._updates_seen = attempted
        self.recent_steps_per_s, self.recent_updates_per_s = steps / seconds, updates / seconds
        if updates and host["learned_from"] <= steps_before:
            self.steps, self.updates, self.seconds = self.steps + steps, self.updates + updates, self.seconds + seconds

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def updates_per_s(self) -> float:
        return self.updates / self.seconds if self.seconds else 0.0


class _Interrupts:
    """SIGINT and SIGTERM ask for a checkpoint and an orderly end; a second one is immediate."""

    def __init__(self) -> None:
        self.seen: str | None = None

    def __enter__(self) -> "_Interrupts":
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self.seen = signal.Signals(number).name
        for other in self._before:
            signal.signal(other, signal.SIG_DFL)


def _with_network(spec: Spec, network: Any) -> Spec:
    if network is None:
        return spec
    return spec.model_copy(update={"network": CustomNetwork(kind="custom", name=type(network).__qualname__)})


def _next(step: int, every: int) -> int:
    return (step // every + 1) * every


def _crossed(before: int, now: int, every: int) -> bool:
    return now // every > before // every


def _new_pace(pace: int, blocks: int, seconds: float) -> int:
    """Blocks for the next chunk, so that it takes about half a second; grows at most eightfold."""
    wanted = blocks * SECONDS_PER_CHUNK / max(seconds, 1e-6)
    return max(1, min(int(wanted), 8 * pace)) if blocks == pace or wanted < pace else pace
