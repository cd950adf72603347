"""The command line. Each command imports what it needs when it runs, so that help is instant."""

import contextlib
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, TextIO

import typer

from hotloop.answers import answers_apart
from hotloop.errors import ActorsFailed, HotloopError, SpecError
from hotloop.interrupts import INTERRUPTED, EndsTheCommand, Interrupts

if TYPE_CHECKING:
    from rich.console import Console

    from hotloop.api import Run
    from hotloop.plain import Figures, Json
    from hotloop.progress import Reporter
    from hotloop.searching.run import Search
    from hotloop.spec import Spec

app = typer.Typer(
    name="hotloop",
    help="Train value-based agents (the DQN family) at the speed of the hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

LONGEST_LINE = 500

SpecArgument = Annotated[str | None, typer.Argument(metavar="SPEC", help="A preset's name or a YAML/JSON file.")]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Which spec of a file of SLM-Lab's; the only one by default.")
]
VarOption = Annotated[list[str] | None, typer.Option("--var", metavar="k=v", help="Fill a ${k} of SLM-Lab's file.")]
_answers: TextIO | None = None
"""Where JSON goes while all else that is printed goes to standard error."""


def _keep_stdout_for_json(wanted: bool) -> bool:
    """Whatever envs and packages print, --json prints one object and nothing else."""
    global _answers
    if wanted and _answers is None and sys.stdout is sys.__stdout__:  # no one else has taken its place
        with contextlib.suppress(OSError):  # it may be closed
            _answers = answers_apart()
    return wanted


JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object as the last line of stdout.", callback=_keep_stdout_for_json),
]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="a.b=c", help="Override a field of the spec.")]
EnvOption = Annotated[str | None, typer.Option(help="Env id; alone, trains the default spec on it.")]
StepsOption = Annotated[int | None, typer.Option(help="Env steps in all (stop.steps).")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of everything random.")]
EngineOption = Annotated[str | None, typer.Option(help="Who does the array maths: jax or torch.")]
ActorsOption = Annotated[int | None, typer.Option(help="Processes that step the envs; pipeline processes, or auto.")]
PipelineOption = Annotated[str | None, typer.Option(help="How experience flows; auto by default.")]
OutOption = Annotated[Path | None, typer.Option(help="Folder for the run; must not exist.")]
TrustOption = Annotated[bool, typer.Option("--trust", help="Import the module that a run from elsewhere names.")]
PluginOption = Annotated[list[str] | None, typer.Option("--plugin", metavar="MODULE", help="Import it first.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


@app.command()
def train(
    spec: SpecArgument = None,
    name: NameArgument = None,
    env: EnvOption = None,
    set_: SetOption = None,
    var: VarOption = None,
    steps: StepsOption = None,
    seed: SeedOption = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds to train, from --seed on.")] = None,
    engine: EngineOption = None,
    pipeline: PipelineOption = None,
    actors: ActorsOption = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say how much memory it needs, and stop.")] = False,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train an agent. Ctrl-C saves and stops; `hotloop resume` continues. PROFILE=true also profiles it."""
    from hotloop import api
    from hotloop.spec.reading import is_slm_lab_file

    seeds = 1 if seeds is None and _is_profiled() and spec is not None and is_slm_lab_file(spec) else seeds
    short = {"engine": engine, "pipeline": pipeline, "actors.count": actors, "seeds": seeds}
    parsed = _read_spec(spec, set_, {"env.id": env, "stop.steps": steps, "seed": seed, **short}, name, var)
    if plan:
        from hotloop.assembly import Assembly
        from hotloop.envs.naming import look_in_current_folder
        from hotloop.pipeline_trial import ELSEWHERE, obstacle
        from hotloop.run_plan import actors_plan, memory_plan, say_actors

        look_in_current_folder(parsed.env.id)
        with Assembly(parsed) as assembly:
            memory, in_processes = memory_plan(assembly), actors_plan(assembly)
            measured = [] if obstacle(assembly, parsed) else [assembly.pipeline_choice.name, ELSEWHERE]
        if as_json:
            more: Figures = {"measured_at_the_start": [*measured]} if measured else {}
            _print_json(memory.as_json() | more | ({} if in_processes is None else {"processes": in_processes}))
        else:
            typer.echo(str(memory))
            if measured:
                typer.echo(
                    f"pipeline: {measured[0]}; where the env turns out to be slow, {measured[1]} if a trial as the run "
                    "begins says that it is faster (actors.measure)"
                )
            if in_processes is not None:
                typer.echo(say_actors(in_processes))
        if memory.refusal():
            raise SpecError(str(memory.refusal()))
        return
    work = api.profile if _is_profiled() else api.train
    _report(lambda reporter: work(parsed, out=out or api.DEFAULT, reporter=reporter), as_json)


@app.command()
def profile(
    spec: SpecArgument = None,
    name: NameArgument = None,
    env: EnvOption = None,
    set_: SetOption = None,
    var: VarOption = None,
    steps: StepsOption = None,
    seed: SeedOption = None,
    engine: EngineOption = None,
    pipeline: PipelineOption = None,
    actors: ActorsOption = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Also write a trace by the profiler of JAX or PyTorch, for Perfetto; in pipeline processes one of "
            "learner and actors, too.",
        ),
    ] = False,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train, and say where the time goes: by stage, per step, per episode. The training is the same to the bit.

    With --env ID of a Gymnasium env alone: which Python functions of it take the time of a step.
    """
    from hotloop import api, registry
    from hotloop.spec.reading import is_slm_lab_file

    if spec is None and env is not None and not registry.is_device_env(env) and not registry.has_agents(env):
        unused = {"--steps": steps, "--seed": seed, "--engine": engine, "--pipeline": pipeline, "--out": out}
        unused["--actors"] = actors
        unused["--trace"] = trace or None
        found = api.profile_env(env, **_env_options(_parse_set(set_ or []), unused))
        if as_json:
            from hotloop.profiling.figures import as_figures

            _print_json(as_figures(found))
            return
        from hotloop.profiling.show import print_functions

        print_functions(found, _console())
        return
    # Of several sessions of SLM-Lab's, one is looked at.
    sessions = {"seeds": 1} if spec is not None and is_slm_lab_file(spec) else {}
    short = {"engine": engine, "pipeline": pipeline, "actors.count": actors, **sessions}
    parsed = _read_spec(spec, set_, {"env.id": env, "stop.steps": steps, "seed": seed, **short}, name, var)
    _report(lambda reporter: api.profile(parsed, out=out or api.DEFAULT, trace=trace, reporter=reporter), as_json)


@app.command()
def resume(
    run: RunArgument,
    steps: Annotated[int | None, typer.Option(help="New end of the run, in env steps.")] = None,
    torch_mode: Annotated[
        str | None, typer.Option(help="eager or compiled: go on in another mode of engine torch than it had.")
    ] = None,
    actors: Annotated[
        int | None, typer.Option(help="Another number of processes that step the envs, in pipeline processes.")
    ] = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a run from its newest whole checkpoint, bit for bit. With --steps a solved run goes on, too."""
    from hotloop import api

    changes = {"steps": steps, "torch_mode": torch_mode, "actors": actors}
    _report(lambda reporter: api.resume(run, **changes, trust=trust, reporter=reporter), as_json)  # type: ignore[arg-type]


@app.command()
def search(
    spec: SpecArgument = None,
    name: NameArgument = None,
    env: EnvOption = None,
    set_: SetOption = None,
    var: VarOption = None,
    trials: Annotated[int | None, typer.Option(help="Trials in all; 20 by default.")] = None,
    parallel: Annotated[
        int | None, typer.Option(help="Trials side by side; by default one for every two cores.")
    ] = None,
    steps: StepsOption = None,
    seed: SeedOption = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds of each trial; its score is then their IQM.")] = None,
    prune: Annotated[bool, typer.Option(help="End a trial early that stays below the median.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder of the search; one that is there is continued.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Search for the best values of a spec's fields, drawn from what its file says under `search:`.

    Each trial is a whole training, in a process and a run folder of its own. Ctrl-C saves and stops; the same command
    with --out of the search's folder continues it, also after a crash. Needs Optuna, hotloop's extra `search`.
    """
    from hotloop.api import DEFAULT
    from hotloop.progress import Terminal
    from hotloop.searching.run import TRIALS, search_in
    from hotloop.searching.subject import OwnSpec, SlmLabSpec, Subject
    from hotloop.spec.reading import is_slm_lab_file, load_slm_lab, space_in

    short = {"env.id": env, "stop.steps": steps, "seed": seed, "seeds": seeds}
    subject: Subject
    if spec is not None and (name is not None or var or is_slm_lab_file(spec)):
        given = {path: value for path, value in short.items() if value is not None}
        variables, overrides = _parse_var(var or []), {"seeds": 1, **_parse_set(set_ or []), **given}
        _, found_there = load_slm_lab(spec, name, variables, overrides)
        if found_there.has_scheduler:
            found_there.notices.append("meta.search_scheduler: trials are ended by the median of others, not by ASHA")
        if seeds is None and overrides["seeds"] == 1:
            found_there.notices.append("each trial is one seed, scored by its greedy evaluation; --seeds N for more")
        _say_notices(found_there.notices)
        wanted, space = found_there.trials, found_there.original.get("search")
        subject = SlmLabSpec(found_there.name, found_there.original, variables, overrides)
    else:
        subject = OwnSpec.of(_read_spec(spec, set_, short))
        wanted, space = None, None if spec is None else space_in(spec)
    with Terminal() as reporter:
        found = search_in(
            subject,
            space,
            trials=trials if trials is not None else wanted or TRIALS,
            parallel=parallel,
            out=out or DEFAULT,
            prune=prune,
            reporter=reporter,
        )
    if as_json:
        _print_json(found.as_json())
        return
    _print_search(found)


@app.command("eval")
def evaluate(
    run: RunArgument,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help="Greedy episodes to play to their ends; by default 100, or as many as end soon."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the episodes.")] = 0,
    which: Annotated[
        str | None,
        typer.Option(
            help="best or last weights, those of seed-N, or agent-N among the others; by default the best, if any."
        ),
    ] = None,
    set_: SetOption = None,
    record: Annotated[Path | None, typer.Option(metavar="FILE.gif", help="Also write a recording.")] = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Play greedy episodes with a trained agent."""
    from hotloop import api
    from hotloop.progress import Terminal

    if record is not None and record.suffix.lower() != ".gif":
        raise SpecError(f"--record {record}: a recording is a GIF; expected a name that ends in .gif")
    with Terminal() as reporter:
        agent = api.load_with(run, _parse_set(set_ or []), which=which, reporter=reporter, trust=trust)
        with reporter.counting("greedy episodes") as tell:
            figures: Figures = {**agent.evaluate(episodes, seed, tell)}
        if record is not None:
            with reporter.busy("recording"):
                figures["recording"] = str(agent.record(record, seed))
    if as_json:
        _print_json(figures)
        return
    for name, value in figures.items():
        if isinstance(value, dict):  # of each agent
            for figure, each in value.items():
                typer.echo(f"{f'{name} {figure}':>24}  {_in_a_row(each)}")
        else:
            typer.echo(f"{name:>14}  {value:.2f}" if isinstance(value, float) else f"{name:>14}  {value}")
    if figures.get("cut"):
        typer.echo(f"{figures['cut']} episode(s) did not end soon and were cut; --episodes N plays N to their ends")
    if figures.get("endless"):
        typer.echo(f"{figures['endless']} episode(s) reached evaluation.max_steps and count as they stood")


def _in_a_row(each: "Json") -> str:
    values = each if isinstance(each, list) else [each]
    return "  ".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in values)


@app.command("list")
def list_(plugin: PluginOption = None, as_json: JsonOption = False) -> None:
    """Show presets, envs, networks, pipelines and benchmarks, those of plug-ins too."""
    from hotloop import registry
    from hotloop.spec.reading import load_spec, preset_names

    _import_plugins(plugin or [])

    sections = {
        "presets": {name: load_spec(name).description for name in preset_names()},
        "envs": {name: entry.about for name, entry in registry.ENVS.items()},
        "torsos": {name: entry.about for name, entry in registry.TORSOS.items()},
        "heads": {name: entry.about for name, entry in registry.HEADS.items()},
        "networks": {name: entry.about for name, entry in registry.NETWORKS.items()},
        "engines": {name: entry.about for name, entry in registry.ENGINES.items()},
        "pipelines": {name: entry.about for name, entry in registry.PIPELINES.items()},
        "benchmarks": {name: entry.about for name, entry in registry.BENCHES.items()},
    }
    if as_json:
        _print_json(sections)
        return
    for title, rows in sections.items():
        if not rows:  # whole networks are all of plug-ins
            continue
        typer.secho(title, bold=True)
        for name, about in rows.items():
            typer.echo(f"  {name:<24}{about}")


@app.command()
def convert(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSON or YAML file of SLM-Lab's specs.")],
    name: NameArgument = None,
    var: VarOption = None,
    out: Annotated[Path | None, typer.Option(help="Write it there instead of to stdout; must not exist.")] = None,
) -> None:
    """Write a spec of SLM-Lab's as one of ours, in YAML, and say what is not done as there."""
    from hotloop.spec.reading import load_slm_lab, to_yaml

    parsed, found = load_slm_lab(file, name, _parse_var(var or []))
    text = "".join([*(f"# {notice}\n" for notice in found.notices), to_yaml(parsed)])
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        with out.open("x") as written:
            written.write(text)
    except OSError as error:
        raise SpecError(f"--out {out} cannot be written: {error}") from None
    typer.echo(str(out))


@app.command()
def metrics(run: RunArgument, as_json: JsonOption = False) -> None:
    """Say what SLM-Lab's figures are for a run: strength, efficiency, stability; over several seeds consistency."""
    from hotloop.runs.folder import RunFolder
    from hotloop.runs.slm_figures import figures_of, lines_of, sessions_of

    folder = RunFolder.open(run)
    env = folder.read_spec().env
    found = figures_of(sessions_of(folder.path, lines_of(env)), env.id)
    if as_json:
        _print_json(found)
        return
    for name, value in found.items():
        each = value if isinstance(value, list) else [value]
        shown = ", ".join("–" if one is None else f"{one:.4g}" if isinstance(one, float) else str(one) for one in each)
        typer.echo(f"{name:>26}  {shown}")


@app.command("check-env")
def check_env(
    env: Annotated[str, typer.Argument(metavar="ID", help="A Gymnasium id (module:Id), or pettingzoo:module.")],
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a Gymnasium or PettingZoo env does wrong, in plain words, and what one step of it costs."""
    from hotloop.envs.check import check_env
    from hotloop.spec.reading import load_spec

    parsed = _parse_set(set_ or [])
    observe = load_spec({"env": {"id": env, "observe": parsed.pop("env.observe", ())}}).env.observe
    report = check_env(env, _env_options(parsed, {}), observe)
    if as_json:
        _print_json(
            {
                "env": env,
                "is_sound": report.is_sound,
                "findings": [finding._asdict() for finding in report.findings],
                "us_per_step": report.us_per_step,
                "us_per_step_of_16": report.us_per_step_of_16,
            }
        )
    else:
        for finding in report.findings:
            typer.echo(f"{finding.level:>6}  {finding.text}")
        if report.us_per_step is not None and report.us_per_step_of_16 is not None:
            typer.echo(f"  cost  {report.us_per_step:.1f} us per step; {report.us_per_step_of_16:.1f} us with 16 envs")
    if not report.is_sound:
        raise typer.Exit(1)


@app.command()
def schema(plugin: PluginOption = None) -> None:
    """Print the JSON Schema of a spec: every field with its meaning and default."""
    from hotloop.spec.reading import json_schema

    _import_plugins(plugin or [])
    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def doctor(
    context: typer.Context,
    spec: SpecArgument = None,
    env: EnvOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    engine: EngineOption = None,
    pipeline: PipelineOption = None,
    actors: ActorsOption = None,
    minutes: Annotated[float, typer.Option(help="About how long it may take.")] = 3.0,
    out: Annotated[Path | None, typer.Option(help="Folder for doctor.html and doctor.json; must not exist.")] = None,
    quiet: Annotated[
        bool, typer.Option(help="Of a script: do not show what it prints; it goes to script.log in --out.")
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="Of a script: run it again with remedies that need no edit, in a copy of this folder.")
    ] = False,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Two reports (doctor.json), before and after; nothing is run.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a run is slow and which settings make it faster: predicted, then measured. Keeps nothing but --out.

    hotloop doctor [--minutes M] [--quiet] [--verify] -- python train.py …: the same of anyone's script, unchanged.
    """
    if compare is not None:
        from hotloop.doctor.compare import compared, print_compared

        between = compared(*compare)
        _print_json(between) if as_json else print_compared(between, _console())
        return
    if context.obj is not None:
        if spec is not None or env is not None or set_:
            raise SpecError("either a spec or a command after --, not both")
        _doctor_of_script(context.obj, minutes, out, quiet=quiet, verifies=verify, as_json=as_json)
        return
    from hotloop.assembly import Own
    from hotloop.doctor.diagnosis import diagnose
    from hotloop.doctor.report import figures_of, print_report
    from hotloop.envs.naming import look_in_current_folder
    from hotloop.progress import Terminal

    short = {"engine": engine, "pipeline": pipeline, "actors.count": actors}
    parsed = _read_spec(spec, set_, {"env.id": env, "seed": seed, **short})
    _require_minutes(minutes)
    _make_new(out)
    look_in_current_folder(parsed.env.id)
    with Terminal() as reporter:
        found = diagnose(parsed, Own(), minutes, reporter)
    report = figures_of(found)
    if as_json:
        _print_json(report)
    else:
        print_report(found, _console())
    if out is not None:
        from hotloop.doctor.page import page_of

        _write(out / "doctor.json", json.dumps(report, indent=1) + "\n")
        _write(out / "doctor.html", page_of(found))
        if not as_json:
            print(f"  page       {out / 'doctor.html'}")


def _log_in(out: Path | None) -> IO[bytes]:
    """Where a quiet script's words go; without a folder nothing of it is left."""
    return tempfile.TemporaryFile() if out is None else (out / "script.log").open("w+b")


LAST_WORDS = 12
"""Lines of a quiet script that failed which are shown all the same."""


def _doctor_of_script(
    command: list[str], minutes: float, out: Path | None, *, quiet: bool, verifies: bool, as_json: bool
) -> None:
    from hotloop.doctor.scripts.diagnosis import diagnose_script
    from hotloop.doctor.scripts.report import figures_of, print_report
    from hotloop.progress import Terminal

    _require_minutes(minutes)
    if not command:
        raise SpecError("there is no command after --; as in: hotloop doctor -- python train.py")
    _make_new(out)
    with contextlib.ExitStack() as opened:
        log = opened.enter_context(_log_in(out)) if quiet else None
        reporter = opened.enter_context(Terminal())
        found = diagnose_script(command, minutes, reporter, log=log, beside_json=as_json, verifies=verifies)
        if log is not None and found.found.attended.exit_code:
            log.seek(0)
            print(*log.read().decode(errors="replace").splitlines()[-LAST_WORDS:], sep="\n", file=sys.stderr)
    report = figures_of(found)
    if as_json:
        _print_json(report)
    else:
        print_report(found, _console())
    if out is not None:
        from hotloop.doctor.scripts.page import page_of

        _write(out / "doctor.json", json.dumps(report, indent=1) + "\n")
        _write(out / "doctor.html", page_of(found))
        if found.equivalent is not None and (text := found.equivalent.text()) is not None:
            _write(out / "hotloop.yaml", text)
        if not as_json:
            print(f"  page       {out / 'doctor.html'}")
    if not found.found.causes and found.found.attended.exit_code:
        raise typer.Exit(1)  # the script itself failed, before anything was seen of it


def _make_new(out: Path | None) -> None:
    """The folder of a report, if one is wanted."""
    if out is None:
        return
    if out.exists():
        raise SpecError(f"--out {out}: there is something already; name a folder that does not exist")
    out.mkdir(parents=True)


@app.command()
def tune(
    spec: SpecArgument = None,
    env: EnvOption = None,
    set_: SetOption = None,
    minutes: Annotated[float, typer.Option(help="About how long it may take.")] = 5.0,
    advice: Annotated[
        bool, typer.Option("--advice", help="Only say which settings suit this machine, with reasons; trains nothing.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The spec that is written; must not exist.")] = Path("tuned.yaml"),
    as_json: JsonOption = False,
) -> None:
    """Look for settings that make a run faster and leave what it learns as it is; writes tuned.yaml."""
    from hotloop.envs.naming import look_in_current_folder
    from hotloop.progress import Terminal

    parsed = _read_spec(spec, set_, {"env.id": env})
    look_in_current_folder(parsed.env.id)
    if advice:
        from hotloop.doctor.advice import advise, print_advice

        found = advise(parsed)
        _print_json(found.figures()) if as_json else print_advice(found, _console())
        return
    from hotloop.doctor.tuning import print_tuned, text_of
    from hotloop.doctor.tuning import tune as search

    _require_minutes(minutes)
    if out.exists() or not out.absolute().parent.is_dir():
        expected = "name a file that does not exist, in a folder that does"
        raise SpecError(f"--out {out}: there is {'something' if out.exists() else 'no folder for it'}; {expected}")
    with Terminal() as reporter:
        tuned = search(parsed, minutes, reporter)
    written = out if tuned.changes else None
    if as_json:
        _print_json(tuned.figures(written))
    else:
        print_tuned(tuned, written, _console())
    if tuned.changes:
        overrides = {**_parse_set(set_ or []), **({"env.id": env} if env else {})}
        _write(out, text_of(tuned, spec, overrides))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HotloopError(f"{path} could not be written: {error}") from None


def _require_minutes(minutes: float) -> None:
    if minutes <= 0:
        raise SpecError(f"--minutes is {minutes:g}, expected more than 0")


@app.command()
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which benchmark (`hotloop list`).")],
    as_json: JsonOption = False,
) -> None:
    """Measure, as ratios against baselines interleaved in the same run."""
    from hotloop import registry
    from hotloop.progress import Terminal

    try:
        run = registry.load(registry.BENCHES, name, "benchmark")
        with Terminal() as reporter, Interrupts.passed_on():
            result = run(reporter)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("hotloop"):
            raise
        raise SpecError(f"benchmark '{name}' needs the package {error.name}; pip install 'hotloop[bench]'") from None
    except ValueError as error:
        raise SpecError(str(error)) from None
    if as_json:
        _print_json(result.as_json())
    else:
        result.print_table()


def main() -> None:
    """Run a command; bad input is one line on stderr and exit code 2, Ctrl-C before or after a run one line and 130."""
    arguments, command = _and_command(sys.argv[1:])
    with EndsTheCommand() as interrupts:
        try:
            app(arguments, obj=command)
        except HotloopError as error:
            if isinstance(error, ActorsFailed) and error.words:
                print(error.words.rstrip(), file=sys.stderr)
            print(f"hotloop: {_one_line(error)}", file=sys.stderr)
            sys.exit(error.exit_code)
        except SystemExit as ended:
            if ended.code == INTERRUPTED:  # as typer has it for KeyboardInterrupt
                print(interrupts.LINE, file=sys.stderr)
            raise


def _and_command(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Our own arguments, and someone's command after `doctor … --`, whose options are its own."""
    if arguments[:1] != ["doctor"] or "--" not in arguments:
        return arguments, None
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _read_spec(
    spec: str | None,
    assignments: list[str] | None,
    short: Mapping[str, str | int | None],
    name: str | None = None,
    variables: list[str] | None = None,
) -> "Spec":
    """The spec with --set and the short options on top; an env alone gets the default spec.

    `name` and `variables` are for files of SLM-Lab's; what cannot be done as there is said on stderr.
    """
    from hotloop.spec.reading import is_slm_lab_file, load_slm_lab, load_spec

    env = short["env.id"]
    if spec is None and not env:
        raise SpecError("say what to train: a preset (`hotloop list`), a file, or --env ID")
    given = {path: value for path, value in short.items() if value is not None}
    if spec is not None and (name is not None or variables or is_slm_lab_file(spec)):
        overrides = {**_parse_set(assignments or []), **given}
        parsed, found = load_slm_lab(spec, name, _parse_var(variables or []), overrides)
        _say_notices(found.notices)
        return parsed
    base = spec if spec is not None else {"name": re.sub(r"[^\w.-]+", "-", str(env))}
    return load_spec(base, {**_parse_set(assignments or []), **given}, imports_plugins=True)


def _import_plugins(named: list[str]) -> None:
    """Have the registry know what plug-ins bring: those that are installed, and those named."""
    from hotloop import plugins

    plugins.load_installed()
    plugins.import_named(named, plugins.current_folder())


def _env_options(parsed: Mapping[str, object], unused: Mapping[str, object]) -> dict[str, object]:
    """Options of an env that is only stepped: `--set env.options.x=…`, and nothing that belongs to training."""

    wrong = [path for path in parsed if not path.startswith("env.options.")]
    wrong += [name for name, value in unused.items() if value is not None]
    if wrong:
        raise SpecError(f"{wrong[0]} has no meaning here: a Gymnasium env is only stepped, not trained on")
    return {path.removeprefix("env.options."): value for path, value in parsed.items()}


def _console() -> "Console":
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=140)


def _is_profiled() -> bool:
    """Whether a training is to be a profile, as the environment says."""
    return os.environ.get("PROFILE", "").lower() in ("1", "true", "yes", "on")


def _say_notices(notices: list[str]) -> None:
    for notice in notices:
        typer.echo(f"not as in SLM-Lab, or worth knowing: {notice}", err=True)


def _parse_var(assignments: list[str]) -> dict[str, str]:
    parsed = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise SpecError(f"--var '{assignment}': expected k=v, e.g. --var env=ALE/Pong-v5")
        parsed[name] = value
    return parsed


def _parse_set(assignments: list[str]) -> dict[str, object]:
    from hotloop.spec.reading import parse_value

    parsed = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise SpecError(f"--set '{assignment}': expected a.b=c, e.g. --set replay.batch_size=128")
        parsed[path] = parse_value(text)
    return parsed


def _report(work: "Callable[[Reporter], Run]", as_json: bool) -> None:
    from hotloop.progress import Terminal

    with Terminal() as reporter:
        run = work(reporter)
    if as_json:
        _print_json(run.result)
        return
    path = run.path
    assert path is not None  # the command line always gives it a folder
    typer.echo(f"{run.stopped}")
    speeds = f"{run.env_steps_per_s:,.0f} steps/s, {run.updates_per_s:,.0f} updates/s"
    typer.echo(
        f"  {run.env_steps:,.0f} env steps in {run.seconds:.1f} s "
        f"({speeds if run.env_steps_per_s else 'none of them now'}, "
        f"compile {run.compile_seconds:.1f} s, evaluating {run.seconds_evaluating:.1f} s)"
    )
    score = "none yet" if run.return_mean is None else f"{run.return_mean:.1f}"
    cut = f"; {run.episodes_cut} episode(s) not played to the end" if run.episodes_cut else ""
    cut += f"; {run.episodes_endless:g} reached evaluation.max_steps" if run.episodes_endless else ""
    typer.echo(f"  replay ratio {run.updates_per_step:g}, score {score} (mean return{cut})")
    if not run.updates:
        typer.echo("  no gradient step was taken: learning begins after replay.start env steps")
    typer.echo(f"  run        {path}")
    for name in ("curve.png", "recording.gif", "profile.png"):
        if (path / name).is_file():
            typer.echo(f"  {name.partition('.')[0]:<10} {path / name}")
    if run.result.get("trace"):
        typer.echo(f"  trace      {run.trace} (open it at https://ui.perfetto.dev, or in chrome://tracing)")
    if "profile" in run.result:
        from hotloop.profiling.show import print_tables

        print_tables(run.profile, _console())
    for what, command in _next_commands(run, path).items():
        typer.echo(f"  {what:<10} {command}")


def _print_search(found: "Search") -> None:
    counts = ", ".join(f"{found.count(state)} {state}" for state in ("completed", "pruned", "failed"))
    typer.echo(f"{found.stopped or 'search done'}: {len(found.records)} trial(s), {counts}")
    if found.best is not None:
        typer.echo(f"  best       trial {found.best.number}, score {found.best.score:g}")
        for path, value in found.best.values.items():
            share = f"   importance {found.importances[path]:.0%}" if path in found.importances else ""
            shown = f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
            typer.echo(f"             {path:<34} {shown:<16}{share}")
    named = shlex.quote(str(found.path))
    typer.echo(f"  search     {found.path}")
    for name, file in (("picture", "search.png"), ("table", "trials.csv")):
        if (found.path / file).is_file():
            typer.echo(f"  {name:<10} {found.path / file}")
    if found.best_spec is not None:
        typer.echo(f"  train      hotloop train {shlex.quote(str(found.best_spec))}")
    if found.stopped:
        words = sys.argv[1:]
        is_given = any(word == "--out" or word.startswith("--out=") for word in words)
        typer.echo(f"  continue   hotloop {shlex.join(words)}{'' if is_given else f' --out {named}'}")


def _next_commands(run: "Run", path: Path) -> dict[str, str]:
    """What can be done with a run that has just ended, as commands to copy."""
    from hotloop import registry
    from hotloop.api import profile_refusal
    from hotloop.envs.naming import from_outside
    from hotloop.runs.folder import RunFolder

    folder, named = RunFolder.open(path), shlex.quote(str(path))
    spec = folder.read_spec()
    trust = " --trust" if folder.doubt() and from_outside(spec) else ""
    commands, ended_by = {}, run.stopped_by
    if (path / "best").is_dir() or (path / "last").is_dir():
        commands["evaluate"] = f"hotloop eval {named}" + ("" if (path / "best").is_dir() else " --which last")
        commands["evaluate"] += trust
    if ended_by in ("signal", "callback"):
        commands["continue"] = f"hotloop resume {named}{trust}"
    elif ended_by != "episodes":  # a new end would change nothing
        further = max(spec.stop.steps, _about_twice(int(run.env_steps)))
        commands["continue"] = f"hotloop resume {named} --steps {further}{trust}"
    on_host = not registry.steps_on_device(spec.env.id, spec.engine, spec.pipeline)
    is_found_here = not from_outside(spec) or folder.made_in in ("", os.getcwd())
    if "profile" not in run.result and is_found_here and not profile_refusal(spec, on_host=on_host):
        commands["profile"] = f"hotloop profile {shlex.quote(str(path / 'spec.yaml'))}"
    if any(path.glob("**/events.out.tfevents.*")):  # several seeds on the host have one each
        commands["watch"] = f"tensorboard --logdir {named}"
    return commands


def _about_twice(steps: int) -> int:
    """Twice as many, as a round number."""
    unit: int = 10 ** max(0, len(str(2 * steps)) - 2)
    return 2 * steps // unit * unit


def _print_json(data: "Json") -> None:
    from hotloop.runs.metrics import finite

    print(json.dumps(finite(data), allow_nan=False), file=_answers or sys.stdout, flush=True)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} …"


if __name__ == "__main__":
    main()
