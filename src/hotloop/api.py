"""What `import hotloop` offers: train, resume, load, profile."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop import plugins
from hotloop.envs.naming import env_from_outside, look_for_module_in, look_in_current_folder
from hotloop.errors import SpecError
from hotloop.progress import Reporter, Silent
from hotloop.runs.folder import RunFolder
from hotloop.spec import Spec
from hotloop.spec.reading import OWN_ENV, load_spec, plugins_in, sections_given

if TYPE_CHECKING:
    from hotloop.agent import Agent
    from hotloop.assembly import Assembly
    from hotloop.driver import Driver


class Run:
    """A finished (or stopped) run: its folder, and its figures as attributes (`run.return_mean`)."""

    def __init__(self, path: Path, result: dict[str, Any]) -> None:
        self.path = path
        self.result = result

    def __getattr__(self, name: str) -> Any:
        """Look the figure up in `result`."""
        result = self.__dict__.get("result", {})
        if name not in result:
            raise AttributeError(f"a run has no '{name}'; it has {', '.join(result)}")
        return result[name]

    def __repr__(self) -> str:
        """Show where it is and what it reached."""
        return f"Run({str(self.path)!r}, env_steps={self.env_steps}, return_mean={self.return_mean})"


def train(
    spec: str | Path | Mapping[str, Any] | Spec,
    *,
    out: str | Path | None = None,
    network: Any = None,
    device_env: Any = None,
    reporter: Reporter | None = None,
    **overrides: Any,
) -> Run:
    """Train from a preset's name, a file, a mapping or a Spec.

    Overrides are fields of the spec, or dotted paths: `train("cartpole", seed=3, **{"stop.steps": 50_000})`.
    `network` is a module of your own with `init(key, obs_B)` and `apply(params, obs_B)` that returns one
    Q-value per action; any flax linen module has both. What the spec's own head did beyond that (a distribution,
    dueling, noise) is left out with a warning, and ε explores where noise did. `device_env` is an env of your own that
    satisfies `hotloop.envs.device.DeviceEnv`.
    """
    with _new_run(spec, out, network, device_env, reporter, overrides) as driver:
        result = driver.train()
        return Run(driver.folder.path, result)


def profile(
    spec: str | Path | Mapping[str, Any] | Spec,
    *,
    out: str | Path | None = None,
    network: Any = None,
    device_env: Any = None,
    reporter: Reporter | None = None,
    **overrides: Any,
) -> Run:
    """Train as `train` does, to the same bits, then say where the time went: `run.profile`, profile.json and .png."""
    with _new_run(spec, out, network, device_env, reporter, overrides) as driver:
        return _profiled(driver)


def _profiled(driver: "Driver") -> Run:
    from hotloop.pipelines.host_run import HostRun

    session = driver.session
    session.spans.keep_events()
    on_host = isinstance(session, HostRun)  # whose stages are those of its lines of metrics
    if refusal := profile_refusal(driver.spec, on_host=on_host):
        raise SpecError(refusal)
    driver.logs_exactly |= on_host
    result = driver.train()
    learned = result["updates"] + result["skipped"] > 0
    if driver.interrupted or not learned:
        driver.reporter.warn(f"no profile: {result['stopped']}{'' if learned else ' before learning began'}")
        return Run(driver.folder.path, result)
    from hotloop.profiling.host_report import profile_host_run
    from hotloop.profiling.run import profile_run

    if on_host:
        pipeline = driver.assembly.pipeline_choice
        result["profile"] = profile_host_run(
            driver.spec, pipeline, session.spans, result, driver.folder, driver.reporter
        )
    else:
        state: Any = session
        result["profile"] = profile_run(driver.assembly, state.first_state(), result, driver.folder, driver.reporter)
    return Run(driver.folder.path, result)


def profile_refusal(spec: Spec, *, on_host: bool) -> str | None:
    """Why a run of this spec cannot be profiled, if so; `on_host`: its envs are stepped there."""
    if spec.on_policy is not None:
        return "a profile times the stages around a replay, and on_policy has none; use hotloop train"
    stop, start, every = spec.stop.steps, spec.replay.start, spec.log.every
    if stop < start:
        return f"stop.steps is {stop}, but learning begins at {start} (replay.start): nothing to profile"
    if on_host and stop // every * every < start + every:
        return (
            f"stop.steps is {stop:,}: a profile needs two lines of metrics after learning begins at {start:,} "
            f"(replay.start), and log.every is {every:,}; train longer, or lower log.every"
        )
    return None


def profile_env(env_id: str, /, **options: Any) -> dict[str, Any]:
    """Say which Python functions of a Gymnasium env take the time of its steps."""
    from hotloop.profiling.functions import profile_env

    return profile_env(env_id, options)


def resume(
    run: str | Path | Run,
    *,
    steps: int | None = None,
    network: Any = None,
    device_env: Any = None,
    trust: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Continue a run from its newest whole checkpoint; `steps` moves its end, also in its spec.yaml.

    A run that has reached its goal goes on then, until an evaluation from there on reaches it again.

    `trust` lets a run that you did not make name modules, which are imported: see `load`.
    """
    folder = _open(run)
    folder.require_resumable()
    spec = _spec_of(folder, {"stop.steps": steps} if steps is not None else {}, trust, device_env)
    folder.require_writable()
    reporter = reporter or Silent()
    checkpoint = folder.newest_checkpoint(reporter.warn)
    with _assembled(spec, network, device_env, reporter) as assembly:
        from hotloop.driver import Driver

        driver = Driver(assembly, folder, reporter)
        return Run(folder.path, driver.resume(*checkpoint, moves_end=steps is not None))


def load(
    run: str | Path | Run,
    *,
    which: str | None = None,
    network: Any = None,
    device_env: Any = None,
    reporter: Reporter | None = None,
    trust: bool = False,
    **overrides: Any,
) -> "Agent":
    """Load the trained agent of a run: its `best` evaluated weights, the `last`, or the last of `seed-3`.

    By default the best; where no evaluation was whole there are none, and with a warning it is the last ones.

    Overrides are fields of the spec, to see the agent elsewhere: `load(run, **{"env.options.grid": 20})`.
    A run that you did not make here may only name envs of packages that hotloop supports; with `trust` it may name any
    module, which is imported and so can do whatever it likes.
    """
    return load_with(
        run, overrides, which=which, network=network, device_env=device_env, reporter=reporter, trust=trust
    )


def load_with(
    run: str | Path | Run,
    overrides: Mapping[str, Any],
    *,
    which: str | None = None,
    network: Any = None,
    device_env: Any = None,
    reporter: Reporter | None = None,
    trust: bool = False,
) -> "Agent":
    """As `load`, with overrides that may have any name."""
    folder = _open(run)
    if which is None:
        which = "best" if folder.has_weights("best") else "last"
        if which == "last" and folder.has_weights("last"):
            (reporter or Silent()).warn(f"{folder.path} has no best weights: no evaluation was whole; using the last")
    spec = _spec_of(folder, overrides, trust, device_env)
    named, _ = folder.weights(which)
    from hotloop.agent import Agent
    from hotloop.assembly import Own, Player

    player = Player(spec, Own(network, device_env))
    try:
        return Agent(player, player.engine.layout.from_named(named))
    except ValueError as error:
        raise SpecError(f"{folder.path}: {error}") from None


@contextmanager
def _new_run(
    spec: Any, out: Any, network: Any, device_env: Any, reporter: Reporter | None, overrides: dict[str, Any]
) -> "Iterator[Driver]":
    if isinstance(network, Mapping):  # a section of the spec, not a module
        overrides, network = {**overrides, "network": network}, None
    parsed = load_spec(spec, overrides, imports_plugins=True)
    look_in_current_folder(parsed.env.id)
    folder = RunFolder.choose(parsed, Path(out) if out is not None else None)
    reporter = reporter or Silent()
    given = {*sections_given(spec), *(path.partition(".")[0] for path in overrides)}
    with _assembled(parsed, network, device_env, reporter, "exploration" in given) as assembly:
        from hotloop.driver import Driver

        yield Driver(assembly, folder, reporter)


def _assembled(
    spec: Spec, network: Any, device_env: Any, reporter: Reporter, explores_as_given: bool = True
) -> "Assembly":
    """Env, engine and pipeline, to be closed after use."""
    from hotloop.assembly import Assembly, Own

    with reporter.busy("starting XLA"):
        return Assembly(spec, Own(network, device_env, explores_as_given))


def _spec_of(folder: RunFolder, overrides: Mapping[str, Any], trust: bool, device_env: Any) -> Spec:
    """The spec of a run with overrides on top; refuses one from elsewhere that would have a module imported."""
    _import_plugins(folder, overrides, trust)
    made = folder.read_spec()
    spec, section = load_spec(made, overrides), overrides.get("env")
    is_our_choice = "env.id" in overrides or (isinstance(section, Mapping) and "id" in section)
    if device_env is not None or spec.env.id.startswith(OWN_ENV):
        return spec
    doubt = folder.doubt()
    is_refused = doubt is not None and not trust
    if is_refused and is_our_choice and (made.env.options or made.evaluation.options):
        raise SpecError(
            f"{folder.path} holds options for another env than {spec.env.id}, and nothing shows that you made this "
            f"run: {doubt}. If you trust whoever made it, add --trust (from Python: trust=True)"
        )
    if doubt is None and not is_our_choice:
        look_for_module_in(folder.made_in, spec.env.id)
    if trust or is_our_choice:
        look_in_current_folder(spec.env.id)
    elif is_refused and (named := env_from_outside(spec)):
        raise _would_run(folder, named, doubt)
    return spec


def _import_plugins(folder: RunFolder, overrides: Mapping[str, Any], trust: bool) -> None:
    """Import the plug-ins of a run before its spec is read; refuses one from elsewhere that names any."""
    if "plugins" in overrides:  # the user's own word
        plugins.import_named(plugins_in(overrides), plugins.current_folder())
        return
    named, doubt = folder.plugins(), folder.doubt()
    if doubt is not None and not trust and (module := plugins.from_outside(named)):
        raise _would_run(folder, f"the module {module[:80]!r}", doubt)
    folders = [folder.made_in] if doubt is None else []
    plugins.import_named(named, *folders, *([plugins.current_folder()] if trust else []))


def _would_run(folder: RunFolder, named: str, doubt: str | None) -> SpecError:
    return SpecError(
        f"{folder.path} names {named}, which would run as code, and nothing shows that you made this run: {doubt}. "
        "If you trust whoever made it, add --trust (from Python: trust=True)"
    )


def _open(run: str | Path | Run) -> RunFolder:
    return RunFolder.open(run.path if isinstance(run, Run) else Path(run))
