"""What `import hotloop` offers: train, resume, load, profile."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Union, cast

from hotloop import plugins, registry
from hotloop.envs.naming import (
    SUPPORTED_MODULES,
    env_from_outside,
    look_for_module_in,
    look_in_current_folder,
    split_id,
)
from hotloop.errors import SpecError
from hotloop.listeners import Checkpoint, Evaluation, Listener, Log, listeners_of
from hotloop.plain import Figures, Json, number
from hotloop.progress import Reporter, Silent
from hotloop.runs.folder import RunFolder
from hotloop.spec import Spec
from hotloop.spec.reading import OWN_ENV, fields_of_sections, load_spec, plugins_in, sections_given

if TYPE_CHECKING:
    from hotloop.agent import Agent
    from hotloop.assembly import Assembly, Own, PipelineChoice
    from hotloop.doctor.tuning import Tuned
    from hotloop.driver import Driver
    from hotloop.engines.jax.modules import Module
    from hotloop.envs.gym_types import Given
    from hotloop.profiling.figures import AnyProfile, EnvProfile
    from hotloop.runs.store import InFolder, InMemory
    from hotloop.seeds_in_turn import SeedsInTurn


class _Place(Enum):
    DEFAULT = "runs/"

    def __repr__(self) -> str:
        return "runs/NAME-DATE-TIME"


DEFAULT: Final = _Place.DEFAULT
"""Where a run goes that nobody has chosen a folder for; None would be nowhere."""
Out = str | Path | Literal[_Place.DEFAULT] | None
Source = str | Path | Mapping[str, object] | Spec
"""A preset's name, a file, a mapping or a Spec."""
GivenEnv = Union["Given", str, Mapping[str, object]]
"""An env of the user's own or what makes one, an id, or a section of the spec."""


class Kept(NamedTuple):
    """What is left in memory of a run without a folder."""

    spec: Spec
    store: "InMemory"


class Run:
    """A finished (or stopped) run: its folder, and its figures as attributes (`run.return_mean`).

    Trained with `out=None` it has no folder: `path` is None, and `kept` holds its agents. `own` is the network and the
    env of the user's own that it was trained with: `load` and `resume` take them from here.
    """

    # What `result` says of every run.
    run: str | None
    env_steps: float
    updates: float
    updates_per_step: float
    env_steps_per_s: float
    updates_per_s: float
    seconds: float
    compile_seconds: float
    seconds_evaluating: float
    seconds_to_first_update: float | None
    seconds_to_stop: float | None
    return_mean: float | None
    episodes_cut: int
    episodes_endless: int
    episodes: float
    steps_per_episode: float | None
    skipped: float
    stopped: str
    stopped_by: str
    disk_error: str | None
    # Of one with several seeds.
    seeds: list[int]
    return_iqm: float
    return_interval: list[float]
    by_seed: dict[str, list[float]]
    # Of one that was profiled.
    profile: "AnyProfile"
    trace: str | None

    def __init__(self, path: Path | None, result: Figures, kept: Kept | None = None, own: "Own | None" = None) -> None:
        self.path = path
        self.result = result
        self.kept = kept
        self.own = own

    def __getstate__(self) -> dict[str, object]:
        """What goes to another process: not what a user brought along, which need not be able to."""
        return {**self.__dict__, "own": None}

    def __copy__(self) -> "Run":
        """Stays in this process."""
        return Run(self.path, self.result, self.kept, self.own)

    def __deepcopy__(self, memo: dict[int, object]) -> "Run":
        """Stays in this process, too."""
        return Run(self.path, copy.deepcopy(self.result, memo), self.kept, self.own)

    @property
    def agent(self) -> "Agent":
        """Its agent, as `hotloop.load(run)` returns it: with the best weights, or the last where there are none."""
        return load(self)

    def __getattr__(self, name: str) -> Json:
        """Look the figure up in `result`."""
        result: Figures = self.__dict__.get("result", {})
        if name not in result:
            raise AttributeError(f"a run has no '{name}'; it has {', '.join(result)}")
        return result[name]

    def __repr__(self) -> str:
        """Show where it is and what it reached."""
        where = None if self.path is None else str(self.path)
        return f"Run({where!r}, env_steps={self.env_steps}, return_mean={self.return_mean})"


def slm_lab(file: str | Path, name: str | None = None, **variables: str) -> Spec:
    """One spec of a file of SLM-Lab's in our words, to be trained; `variables` fill its `${name}`s.

    What is not done as there is a RuntimeWarning each; `hotloop.train(hotloop.slm_lab(file, name))`.
    """
    from hotloop.spec.reading import load_slm_lab

    spec, found = load_slm_lab(file, name, variables)
    for notice in found.notices:
        Silent().warn(f"{found.name}: {notice}")
    return spec


def train(
    spec: Source,
    *,
    out: Out = DEFAULT,
    network: "Module | Mapping[str, object] | None" = None,
    env: GivenEnv | None = None,
    device_env: GivenEnv | None = None,
    on_log: Callable[[Log], object] | None = None,
    on_evaluation: Callable[[Evaluation], object] | None = None,
    on_checkpoint: Callable[[Checkpoint], object] | None = None,
    listeners: Sequence[Listener] = (),
    reporter: Reporter | None = None,
    **overrides: object,
) -> Run:
    """Train from a preset's name, a file, a mapping or a Spec.

    Overrides are fields of the spec, or dotted paths: `train("cartpole", seed=3, **{"stop.steps": 50_000})`.
    `out` is the run's folder, by default one of its own below runs/; with None nothing is written at all, and the
    agent is `run.agent`.
    `network` is a module of your own with `init(key, obs_B)` and `apply(params, obs_B)` that returns one
    Q-value per action; any flax linen module has both. With `engine="torch"` it is a `torch.nn.Module`, which begins
    with the weights it has, or a class of them that takes no arguments. What the spec's own head did beyond that (a
    distribution, dueling, noise) is left out with a warning, and ε explores where noise did.
    `env` is a section of the spec, an id, or an env of your own: a Gymnasium env, a device env (it satisfies
    `hotloop.envs.device.DeviceEnv`), or a function that makes one of the two and takes `env.options`. One Gymnasium env
    is trained on as it is, with `env.num_envs` 1, and stays open; evaluations play on copies of it. `device_env` is
    another name for a device env.
    `on_log`, `on_evaluation` and `on_checkpoint` are called with an event (`hotloop.listeners`) and may return
    `hotloop.STOP`; an exception in one of them ends the run, saved, and is raised here. `listeners` are objects that
    hear all of it (`hotloop.Listener`). None of them changes what is computed.
    """
    _refuse_misspelt(overrides, train)
    heard = listeners_of(listeners, on_log, on_evaluation, on_checkpoint)
    asked = _asked(spec, out, network, _one_of(env, device_env), reporter, overrides)
    if asked.in_turn:
        turns = _turns(asked, heard)
        return _ended_in_turn(turns, turns.train())
    with _driver(asked, heard) as driver:
        return _ended(driver, driver.train())


def profile(
    spec: Source,
    *,
    out: Out = DEFAULT,
    network: "Module | Mapping[str, object] | None" = None,
    env: GivenEnv | None = None,
    device_env: GivenEnv | None = None,
    trace: bool = False,
    reporter: Reporter | None = None,
    **overrides: object,
) -> Run:
    """Train as `train` does, to the same bits, then say where the time went: `run.profile`, profile.json and .png.

    With `trace` the engine's own profiler then looks on while a few blocks more are run, about two seconds of them,
    which nothing keeps (an env that you gave as an instance has taken their steps): `run.trace` is the file to open in
    Perfetto, or None with a warning if there could be none. In pipeline processes that is a trace of the learner and
    all actors on one clock, and the engine's lies beside it.
    """
    _refuse_misspelt(overrides, profile)
    if out is None:
        raise SpecError("a profile is read from the metrics in the run's folder and written there; give out=FOLDER")
    asked = _asked(spec, out, network, _one_of(env, device_env), reporter, overrides)
    if asked.in_turn and (refusal := profile_refusal(asked.spec, on_host=True)):
        raise SpecError(refusal)
    with _driver(asked) as driver:
        return _profiled(driver, trace=trace)


def diagnose(
    spec: Source,
    *,
    minutes: float = 3.0,
    network: "Module | Mapping[str, object] | None" = None,
    env: GivenEnv | None = None,
    reporter: Reporter | None = None,
    **overrides: object,
) -> Figures:
    """Say why a run of the spec is slow and what would help, as `hotloop doctor --json` does; keeps nothing of it."""
    _refuse_misspelt(overrides, diagnose)
    asked = _asked(spec, None, network, env, reporter, overrides)
    from hotloop.doctor import diagnosis, report

    return report.figures_of(diagnosis.diagnose(asked.spec, asked.own, minutes, asked.reporter))


def tune(
    spec: Source,
    *,
    minutes: float = 5.0,
    env: GivenEnv | None = None,
    reporter: Reporter | None = None,
    **overrides: object,
) -> "Tuned":
    """Look for settings with which the spec trains faster and learns the same: `.spec`, `.changes`, `.gain`."""
    _refuse_misspelt(overrides, tune)
    asked = _asked(spec, None, None, env, reporter, overrides)
    if asked.own.env is not None:
        raise SpecError("tune tries settings in processes of their own: name the env by its id (module:Id)")
    from hotloop.doctor import tuning

    return tuning.tune(asked.spec, minutes, asked.reporter)


def _profiled(driver: "Driver", *, trace: bool) -> Run:
    from hotloop.pipelines.learning_run import LearningRun
    from hotloop.pipelines.team_run import TeamRun
    from hotloop.runs.store import InFolder

    session, store = driver.session, driver.store
    assert isinstance(store, InFolder)
    session.spans.keep_events()
    on_host = isinstance(session, LearningRun | TeamRun)  # whose stages are those of its lines of metrics
    if refusal := profile_refusal(driver.spec, on_host=on_host):
        raise SpecError(refusal)
    driver.pace.logs_exactly |= on_host
    driver.stays_open = trace
    result = driver.train()
    if trace:
        result["trace"] = None
    learned = number(result, "updates") + number(result, "skipped") > 0
    if result["stopped_by"] == "signal" or not learned:
        missing = "no profile and no trace" if trace else "no profile"
        driver.reporter.warn(f"{missing}: {result['stopped']}{'' if learned else ' before learning began'}")
        return _ended(driver, result)
    from hotloop.pipelines.device_session import DeviceSession
    from hotloop.profiling.figures import as_figures
    from hotloop.profiling.host_report import profile_host_run
    from hotloop.profiling.run import profile_run

    folder = store.folder
    if on_host:
        pipeline = driver.assembly.pipeline_choice
        found = profile_host_run(driver.spec, pipeline, session.spans, result, folder, driver.reporter)
        result["profile"] = as_figures(found)
    else:
        assert isinstance(session, DeviceSession)
        timed = profile_run(driver.assembly, session.first_state(), result, folder, driver.reporter)
        result["profile"] = as_figures(timed)
    if trace:
        from hotloop.profiling.trace import trace_run

        path = trace_run(session, driver.spec.engine, folder, result, driver.reporter)
        result["trace"] = None if path is None else str(path)
    return _ended(driver, result)


def profile_refusal(spec: Spec, *, on_host: bool) -> str | None:
    """Why a run of this spec cannot be profiled, if so; `on_host`: its envs are stepped there."""
    if on_host and spec.seeds > 1:
        return f"seeds is {spec.seeds}: on the host a profile is of one seed; set seeds to 1, or use hotloop train"
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


def profile_env(env_id: str, /, **options: object) -> "EnvProfile":
    """Say which Python functions of a Gymnasium env take the time of its steps."""
    from hotloop.profiling.functions import profile_env

    return profile_env(env_id, options)


def resume(
    run: str | Path | Run,
    *,
    steps: int | None = None,
    torch_mode: str | None = None,
    actors: int | None = None,
    network: "Module | None" = None,
    env: GivenEnv | None = None,
    device_env: GivenEnv | None = None,
    trust: bool = False,
    on_log: Callable[[Log], object] | None = None,
    on_evaluation: Callable[[Evaluation], object] | None = None,
    on_checkpoint: Callable[[Checkpoint], object] | None = None,
    listeners: Sequence[Listener] = (),
    reporter: Reporter | None = None,
) -> Run:
    """Continue a run from its newest whole checkpoint; `steps` moves its end, also in its spec.yaml.

    A run that has reached its goal goes on then, until an evaluation from there on reaches it again; one that a
    callback stopped goes on to its end. Callbacks and listeners are those of `train`, to be given again.

    `env` is the env of your own that it was trained on, and `network` the network, if it was; a Run of this process has
    them. `trust` lets a run that you did not make name
    modules, which are imported: see `load`. `torch_mode` (eager, compiled) goes on in another mode than it had, with
    other last digits: where there is no compiler, say. `actors` is another number of processes that step the envs of a
    run in pipeline processes.
    """
    heard, own_env = listeners_of(listeners, on_log, on_evaluation, on_checkpoint), _one_of(env, device_env)
    if isinstance(own_env, str | Mapping):
        raise SpecError("a run is resumed on the env it was trained on; env= is for one of your own")
    folder, own = _open(run), _own_of(run, network, own_env, {})
    folder.require_resumable()
    changes = {"stop.steps": steps, "torch.mode": torch_mode, "actors.count": actors}
    spec = _spec_of(folder, {path: value for path, value in changes.items() if value is not None}, trust, own.env)
    if spec.engine == "torch" and torch_mode is None:
        spec = _with_mode(spec, folder, moves_end=steps is not None)
    folder.require_writable()
    reporter = reporter or Silent()
    from hotloop.assembly import trains_in_turn

    if trains_in_turn(spec, own):
        from hotloop.seeds_in_turn import furthest

        if steps is not None and (refusal := _nothing_left(folder, furthest(folder, spec), steps)):
            raise SpecError(refusal)
        turns = _turns(_Asked(spec, own, folder, reporter), heard)
        return _ended_in_turn(turns, turns.resume(moves_end=steps is not None, keeps_mode=torch_mode is None))
    checkpoint = folder.newest_checkpoint(reporter.warn)
    if steps is not None and (refusal := _nothing_left(folder, checkpoint[1].get("env_steps"), steps)):
        raise SpecError(refusal)
    with _assembled(spec, own, reporter) as assembly:
        from hotloop.driver import Driver
        from hotloop.runs.store import InFolder

        driver = Driver(assembly, InFolder(folder, reporter.warn, spec.log.checkpoints), reporter, heard)
        return _ended(driver, driver.resume(*checkpoint, moves_end=steps is not None))


def _with_mode(spec: Spec, folder: RunFolder, *, moves_end: bool) -> Spec:
    """The mode that a resumed run had, to go on to the same bits; one chosen for a shorter run is chosen again."""
    field, chosen = "torch.mode", folder.read_facts().get("chosen")
    if moves_end and spec.torch.mode == "eager" and isinstance(chosen, list) and field in chosen:
        return spec.with_field(field, "auto")
    return spec.with_field(field, "eager") if spec.torch.mode == "auto" and not moves_end else spec


def _nothing_left(folder: RunFolder, done: object, steps: int) -> str | None:
    """Why a run is not resumed up to `steps`: it is past them."""
    if not isinstance(done, int) or done <= steps:
        return None
    return (
        f"{folder.path} has done {done:,} env steps, so nothing is left to do up to {steps:,}; "
        f"go on with --steps N, N above {done:,}"
    )


def load(
    run: str | Path | Run,
    *,
    which: str | None = None,
    network: "Module | None" = None,
    env: GivenEnv | None = None,
    device_env: GivenEnv | None = None,
    reporter: Reporter | None = None,
    trust: bool = False,
    **overrides: object,
) -> "Agent":
    """Load the trained agent of a run: its `best` evaluated weights, the `last`, or the last of `seed-3`.

    Of an env with several agents it is a `hotloop.team.Team`, whose `predict` maps a dict of observations to one of
    actions; `agent-3` is one of them among the others.

    By default the best; where no evaluation was whole there are none, and with a warning it is the last ones.

    Overrides are fields of the spec, to see the agent elsewhere: `load(run, **{"env.options.grid": 20})`; `env` is one
    too, or an env of your own, as for `train`.
    A run that you did not make here may only name envs of packages that hotloop supports; with `trust` it may name any
    module, which is imported and so can do whatever it likes.
    """
    _refuse_misspelt(overrides, load)
    own_env, overrides = _apart(_one_of(env, device_env), overrides)
    return load_with(run, overrides, which=which, network=network, env=own_env, reporter=reporter, trust=trust)


def load_with(
    run: str | Path | Run,
    overrides: Mapping[str, object],
    *,
    which: str | None = None,
    network: "Module | None" = None,
    env: "Given | None" = None,
    reporter: Reporter | None = None,
    trust: bool = False,
) -> "Agent":
    """As `load`, with overrides that may have any name; `env` is one of the user's own."""
    source: RunFolder | InMemory
    own = _own_of(run, network, env, overrides)
    if isinstance(run, Run) and run.kept is not None:
        source, where, spec = run.kept.store, "this run", load_spec(run.kept.spec, overrides)
    else:
        source = folder = _open(run)
        where, spec = str(folder.path), _spec_of(folder, overrides, trust, own.env)
    if which is None:
        which = "best" if source.has_weights("best") else "last"
        if which == "last" and source.has_weights("last"):
            (reporter or Silent()).warn(f"{where} has no best weights: no evaluation was whole; using the last")
    from hotloop.assembly import Player
    from hotloop.team import agent_of, is_one_of_team

    one = which if is_one_of_team(which) else ""  # who plays among the others, as they all were at the end
    named, _ = source.weights("last" if one else which)
    player = Player(spec, own)
    try:
        return cast("Agent", agent_of(player, named, one))  # a Team has its methods, with dicts for observations
    except ValueError as error:
        raise SpecError(f"{where}: {error}") from None


class _Asked(NamedTuple):
    """A run as it was asked for: what to train, with what of the user's own, and where to keep it."""

    spec: Spec
    own: "Own"
    folder: RunFolder | None
    reporter: Reporter

    @property
    def in_turn(self) -> bool:
        """Whether it is several runs, one after the other."""
        from hotloop.assembly import trains_in_turn

        return trains_in_turn(self.spec, self.own)

    def store(self) -> "InFolder | InMemory":
        """Where it is kept."""
        from hotloop.runs.store import InFolder, InMemory

        if self.folder is None:
            return InMemory()
        return InFolder(self.folder, self.reporter.warn, self.spec.log.checkpoints)


def _asked(
    spec: Source,
    out: Out,
    network: "Module | Mapping[str, object] | None",
    env: GivenEnv | None,
    reporter: Reporter | None,
    overrides: dict[str, object],
) -> _Asked:
    own_env, overrides = _apart(env, overrides)
    if isinstance(network, Mapping):  # a section of the spec, not a module
        overrides, network = {**overrides, "network": network}, None
    parsed = load_spec(spec, overrides, imports_plugins=True)
    look_in_current_folder(parsed.env.id)
    folder = None if out is None else RunFolder.choose(parsed, None if out is DEFAULT else Path(out))
    given = {*sections_given(spec), *(path.partition(".")[0] for path in overrides)}
    from hotloop.assembly import Own

    return _Asked(parsed, Own(network, own_env, "exploration" in given), folder, reporter or Silent())


@contextmanager
def _driver(asked: _Asked, listeners: Sequence[Listener] = ()) -> "Iterator[Driver]":
    from hotloop import pipeline_trial

    spec, own, reporter = asked.spec, asked.own, asked.reporter
    with ExitStack() as open_:
        assembly = open_.enter_context(_assembled(spec, own, reporter))
        if (choice := pipeline_trial.choose(assembly, spec, own, reporter)) is not None:
            spec = pipeline_trial.with_choice(spec, choice)
            assembly = open_.enter_context(_assembled(spec, own, reporter, choice))
        from hotloop.driver import Driver

        yield Driver(assembly, asked.store(), reporter, listeners)


def _turns(asked: _Asked, listeners: Sequence[Listener]) -> "SeedsInTurn":
    from hotloop.seeds_in_turn import SeedsInTurn

    return SeedsInTurn(asked.spec, asked.own, asked.store(), asked.reporter, listeners)


def _ended(driver: "Driver", result: Figures) -> Run:
    from hotloop.runs.store import InMemory

    store, assembly = driver.store, driver.assembly
    kept = Kept(assembly.spec, store) if isinstance(store, InMemory) else None
    return Run(store.path, result, kept, assembly.own)


def _ended_in_turn(turns: "SeedsInTurn", result: Figures) -> Run:
    from hotloop.runs.store import InMemory

    kept = Kept(turns.kept_spec, turns.store) if isinstance(turns.store, InMemory) else None
    return Run(turns.store.path, result, kept, turns.own)


def _own_of(
    run: str | Path | Run,
    network: "Module | None",
    env: "Given | None",
    overrides: Mapping[str, object],
) -> "Own":
    """What of the user's own an agent is made with: what is given, else what its run was trained with in this process.

    A network or an env that an override names stands in for it.
    """
    from hotloop.assembly import Own

    if isinstance(network, Mapping):
        raise SpecError("network is a section of a spec; expected the module that the run was trained with, or nothing")
    own = run.own if isinstance(run, Run) and run.own is not None else Own()
    is_named = "network" in overrides or "network.kind" in overrides
    network = own.network if network is None and not is_named else network
    return Own(network, own.env if env is None and not _names_env(overrides) else env, explores_as_given=True)


def _names_env(overrides: Mapping[str, object]) -> bool:
    section = overrides.get("env")
    return "env.id" in overrides or (isinstance(section, Mapping) and "id" in section)


def _refuse_misspelt(overrides: Mapping[str, object], function: Callable[..., object]) -> None:
    """Refuse an override that is neither a field of a spec nor near one, but near an argument of the function."""
    arguments = [name for name in inspect.signature(function).parameters if name not in ("overrides", "trust")]
    for name in overrides:
        if "." not in name and name not in Spec.model_fields and not fields_of_sections(name):
            hint = registry.nearest(name, [*Spec.model_fields, *arguments])
            if any(f"'{argument}'" in hint for argument in arguments):
                raise SpecError(f"{name}: hotloop.{function.__name__} has no such argument; {hint}")


def _one_of(env: GivenEnv | None, device_env: GivenEnv | None) -> GivenEnv | None:
    """Both are names for the same."""
    if env is not None and device_env is not None:
        raise SpecError("env and device_env are both given; device_env is another name for an env that is a device env")
    return device_env if env is None else env


def _apart(env: GivenEnv | None, overrides: dict[str, object]) -> tuple["Given | None", dict[str, object]]:
    """An env of the user's own, if it is one; a section or an id is a part of the spec instead."""
    if isinstance(env, Mapping):
        return None, {**overrides, "env": env}
    return (None, {**overrides, "env.id": env}) if isinstance(env, str) else (env, overrides)


def _assembled(spec: Spec, own: "Own", reporter: Reporter, measured: "PipelineChoice | None" = None) -> "Assembly":
    """Env, engine and pipeline, which may have been chosen by measuring; to be closed after use."""
    from hotloop.assembly import Assembly

    with reporter.busy(f"starting engine {spec.engine}"):
        return Assembly(spec, own, measured=measured)


def _spec_of(folder: RunFolder, overrides: Mapping[str, object], trust: bool, own_env: "Given | None") -> Spec:
    """The spec of a run with overrides on top; refuses one from elsewhere that would have a module imported."""
    _import_plugins(folder, overrides, trust)
    made = folder.read_spec()
    spec, is_our_choice = load_spec(made, overrides), _names_env(overrides)
    if own_env is not None or spec.env.id.startswith(OWN_ENV):
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
    module = "" if registry.is_device_env(spec.env.id) else split_id(spec.env.id)[0]
    if trust or is_our_choice:
        look_in_current_folder(spec.env.id)
    elif is_refused and (named := env_from_outside(spec)):
        raise _would_run(folder, named, module, doubt)
    elif not is_refused and module not in ("", *SUPPORTED_MODULES):
        _require_found(folder, module)
    return spec


def _import_plugins(folder: RunFolder, overrides: Mapping[str, object], trust: bool) -> None:
    """Import the plug-ins of a run before its spec is read; refuses one from elsewhere that names any."""
    if "plugins" in overrides:  # the user's own word
        plugins.import_named(plugins_in(overrides), plugins.current_folder())
        return
    named, doubt = folder.plugins(), folder.doubt()
    if doubt is not None and not trust and (module := plugins.from_outside(named)):
        raise _would_run(folder, f"the module {module[:80]!r}", module, doubt)
    if not trust:
        for module in named:
            _require_found(folder, module)
    folders = [folder.made_in] if doubt is None else []
    plugins.import_named(named, *folders, *([plugins.current_folder()] if trust else []))


def _would_run(folder: RunFolder, named: str, module: str, doubt: str | None) -> SpecError:
    place = plugins.place_of(module, plugins.current_folder()) if module else None
    where, first = (f" (imported from {place})" if place else ""), ""
    if module and place is None:
        where = " (it is neither installed nor in the current folder)"
        first = "go to the folder that holds it and "
    return SpecError(
        f"{folder.path} names {named}, which would run as code{where}, and nothing shows that you made this run: "
        f"{doubt}. If you trust whoever made it, {first}add --trust (from Python: trust=True)"
    )


def _require_found(folder: RunFolder, module: str) -> None:
    """Refuse a run of the user's own whose module is no more where the run says; it is not looked for elsewhere."""
    if plugins.place_of(module, folder.made_in):
        return
    was = (
        f"was in {folder.made_in} when the run was made and is not there now" if folder.made_in else "is not installed"
    )
    here = plugins.place_of(module, plugins.current_folder())
    then = f"add --trust to import {here}" if here else "go to the folder that holds it and add --trust"
    raise SpecError(f"{folder.path} names the module {module[:80]!r}, which {was}; {then} (from Python: trust=True)")


def _open(run: str | Path | Run) -> RunFolder:
    path = run.path if isinstance(run, Run) else Path(run)
    if path is None:
        raise SpecError("this run was trained with out=None: nothing of it is on disk to go on from; give a folder")
    return RunFolder.open(path)
