"""A trace by the engine's own profiler: real events of the update, within bounds, of a run that is the same without."""

import gzip
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hotloop_process import manifest

import hotloop as package
from hotloop import registry
from hotloop.engines.tracing import Trace
from hotloop.errors import SpecError
from hotloop.profiling import trace as tracing
from hotloop.progress import Silent
from hotloop.runs.folder import RunFolder
from hotloop.spans import Spans

SMALL: dict[str, Any] = {
    "name": "small",
    "updates_per_step": 0.25,
    "env": {"id": "CartPole-v1", "num_envs": 4},
    "network": {"torso": {"hidden": [16]}},
    "replay": {"capacity": 512, "start": 64, "batch_size": 16},
    "evaluation": {"every": 0},
    "stop": {"steps": 400},
    "log": {"every": 100},
}
OF_THE_UPDATE = {"jax": ("dot", "fusion"), "torch": ("aten::addmm", "AddmmBackward0", "aten::where")}
"""Parts of names of what an update is made of."""
NO_STAGES = "from hotloop.profiling import run; run.profile_run = lambda *_: {}"
"""Leaves out what takes half a minute to compile and is tested elsewhere (`test_profile.py`)."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "SECONDS", 0.3)


def events_of(path: str | Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def weights_of(run: Any) -> dict[str, np.ndarray]:
    agent = package.load(run, which="last")
    return agent.engine.to_named(agent.weights)


def test_a_traced_run_is_the_same_run_and_its_trace_can_be_opened(hotloop, finished_once, tmp_path):
    ran = hotloop("profile", "tiny.yaml", "--trace", "--out", "run", "--json", before=NO_STAGES)
    result = ran.json
    assert manifest(tmp_path / "run")["digests"] == manifest(finished_once)["digests"]
    assert result["trace"] == "run/trace/jax.json.gz"
    assert "profile" in result
    assert "blocks more than the run had" in ran.err
    assert "iB in run/trace" in ran.err, "it says how large it is"
    of_program = [event for event in events_of(tmp_path / result["trace"]) if "hlo_op" in event.get("args", {})]
    assert {event["args"]["hlo_module"] for event in of_program} >= {"jit_advance"}
    assert any("dot" in event["name"] for event in of_program)
    assert sum(event["dur"] for event in of_program) > 0
    [for_tensorboard] = (tmp_path / "run" / "trace").glob("plugins/profile/*/*.xplane.pb")
    assert for_tensorboard.stat().st_size > 10_000
    assert not list((tmp_path / "run").glob(".trace-*"))
    assert sum(file.stat().st_size for file in (tmp_path / "run" / "trace").rglob("*")) < 2 * tracing.MOST_BYTES


@pytest.mark.heavy
def test_the_terminal_says_where_the_trace_is_and_how_to_open_it(hotloop, tmp_path):
    small = ("--env", "CartPole-v1", "--set", "log.every=250", "--set", "evaluation.every=0", "--set", "stop.steps=900")
    ran = hotloop("profile", "tiny.yaml", *small, "--set", "env.options={}", "--trace", "--out", "run")
    assert ran.code == 0, ran.err
    assert "  trace      run/trace/jax.json.gz (open it at https://ui.perfetto.dev, or in chrome://tracing)" in ran.out
    assert json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"], "the run's own spans, beside it"


@pytest.mark.parametrize(
    ("engine", "pipeline", "env"),
    [
        ("torch", "sync", "CartPole-v1"),
        pytest.param("torch", "concurrent", "CartPole-v1", marks=pytest.mark.heavy),
        pytest.param("torch", "sync", "cartpole", marks=pytest.mark.heavy),
        pytest.param("jax", "sync", "CartPole-v1", marks=pytest.mark.heavy),
        pytest.param("jax", "concurrent", "CartPole-v1", marks=pytest.mark.heavy),
        pytest.param("jax", "sync", "cartpole", marks=pytest.mark.heavy),
    ],
)
@pytest.mark.usefixtures("short")
def test_stages_on_the_host_are_regions_around_what_the_engine_does(engine, pipeline, env, tmp_path):
    spec = {**SMALL, "engine": engine, "pipeline": pipeline, "env": {"id": env, "num_envs": 4}}
    run = package.profile(spec, out=tmp_path / "traced", trace=True)
    plain = weights_of(package.train(spec, out=tmp_path / "plain"))
    for name, array in weights_of(run).items():
        np.testing.assert_array_equal(array, plain[name], err_msg=name)
    assert Path(run.trace) == tmp_path / "traced" / "trace" / f"{engine}.json.gz"
    events = events_of(run.trace)
    stages = {event["name"] for event in events if event["name"].startswith("hotloop: ")}
    assert {"hotloop: step", "hotloop: insert", "hotloop: sample", "hotloop: update"} <= stages
    for part in OF_THE_UPDATE[engine]:
        assert any(part in event["name"] for event in events), part
    updates = [event for event in events if event["name"] == "hotloop: update"]
    if engine == "torch":  # on the learner's thread, if there is one: operations lie within the stage
        within = [e for e in events if e["name"] == "aten::addmm" and _is_within(e, updates)]
        assert len(within) >= len(updates)
    steps = [event for event in events if event["name"] == "hotloop: step"]
    assert len({event["tid"] for event in updates + steps}) == (2 if pipeline == "concurrent" else 1)


def _is_within(event: dict[str, Any], regions: list[dict[str, Any]]) -> bool:
    return any(
        region["tid"] == event["tid"] and region["ts"] <= event["ts"] <= region["ts"] + region["dur"]
        for region in regions
    )


@pytest.mark.usefixtures("short")
def test_a_run_that_ended_after_so_many_episodes_has_a_trace_of_updates(tmp_path):
    spec = {**SMALL, "engine": "torch", "stop": {"steps": 4000, "episodes": 20}}
    run = package.profile(spec, out=tmp_path / "run", trace=True)
    assert run.stopped_by == "episodes"
    assert any(event["name"] == "hotloop: update" for event in events_of(run.trace))


def test_a_profiler_that_does_not_work_loses_neither_the_run_nor_its_profile(tmp_path, monkeypatch):
    broken = registry.ENGINES["torch"]._replace(trace="hotloop.engines.torch.no_such_module:trace")
    monkeypatch.setitem(registry.ENGINES, "torch", broken)  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="no trace: ModuleNotFoundError: "):
        run = package.profile({**SMALL, "engine": "torch"}, out=tmp_path / "run", trace=True)
    assert run.trace is None
    assert run.profile["stages"]
    assert package.load(run, which="last")


@pytest.mark.heavy
def test_a_run_that_never_learns_has_no_trace(hotloop):
    ran = hotloop("profile", "tiny.yaml", "--trace", "--set", "replay.start=512", "--set", "stop.episodes=1", "--json")
    assert ran.json["trace"] is None
    assert "no profile and no trace: 1 episodes done before learning began" in ran.err


def test_an_env_alone_cannot_be_traced(hotloop_here):
    assert "--trace has no meaning here" in hotloop_here("profile", "--env", "CartPole-v1", "--trace").refusal


def test_a_trace_needs_a_folder():
    with pytest.raises(SpecError, match="give out=FOLDER"):
        package.profile(SMALL, out=None, trace=True)


# -- pieces, with a profiler and a run that cost nothing --------------------------------------------------


class PlainRun:
    """Counts its blocks."""

    def __init__(self) -> None:
        self.spans, self.pieces, self.forgotten = Spans("update"), [], 0

    def forget_episodes(self) -> None:
        self.forgotten += 1

    def advance(self, blocks: int) -> None:
        self.pieces.append(blocks)
        for _ in range(blocks):
            with self.spans["update"]:
                pass

    def read(self) -> SimpleNamespace:
        return SimpleNamespace(env_steps=sum(self.pieces))


class PlainProfiler:
    """Writes so many bytes per region that was entered, in so many seconds."""

    def __init__(self, weight: int = 1, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.weight, self.seconds, self.error = weight, seconds, error

    @contextmanager
    def __call__(self, folder: Path) -> Iterator[Trace]:
        seen: list[str] = []

        @contextmanager
        def region(name: str) -> Iterator[None]:
            seen.append(name)
            yield

        yield Trace(folder / "plain.json", region)
        if self.error is not None:
            raise self.error
        folder.mkdir()
        (folder / "plain.json").write_text(json.dumps(sorted(set(seen))).ljust(self.weight * len(seen)))
        time.sleep(self.seconds * len(seen))


def traced_by(profiler: PlainProfiler, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    monkeypatch.setattr(registry, "imported", lambda target: profiler)
    run, result = PlainRun(), {}
    run.spans.keep_events()
    with run.spans["update"]:
        pass
    found = tracing.trace_run(run, "jax", RunFolder(path), result, Silent())  # type: ignore[arg-type]
    assert len(run.spans.events or []) == run.spans["update"].count == 1, "what is traced counts for nothing in the run"
    assert not list(path.glob(".trace-*"))
    return found, run, result


def test_pieces_grow_until_the_next_would_be_too_large(tmp_path, monkeypatch):
    found, run, _ = traced_by(PlainProfiler(weight=tracing.MOST_BYTES // 100), tmp_path, monkeypatch)
    assert run.pieces == [2, 16, 100]
    assert run.forgotten == 3
    assert found == tmp_path / "trace" / "plain.json"
    assert found.stat().st_size <= tracing.MOST_BYTES
    assert json.loads(found.read_text()) == ["hotloop: update"]


def test_pieces_grow_until_the_next_would_take_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "SECONDS", 0.5)
    _, run, _ = traced_by(PlainProfiler(seconds=0.01), tmp_path, monkeypatch)
    assert run.pieces[:2] == [2, 16]
    assert sum(run.pieces[2:]) <= 50


def test_a_trace_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    (tmp_path / "trace").write_text("in the way")
    monkeypatch.setattr(tracing, "SECONDS", 0.0)
    with pytest.warns(RuntimeWarning, match="the trace could not be written"):
        found, _, result = traced_by(PlainProfiler(), tmp_path, monkeypatch)
    assert found is None
    assert "the trace could not be written" in result["disk_error"]


def test_what_a_profiler_raises_is_one_line(tmp_path, monkeypatch):
    with pytest.warns(RuntimeWarning, match=r"^no trace: RuntimeError: no CUPTI here$"):
        found, _, result = traced_by(
            PlainProfiler(error=RuntimeError("no CUPTI here\n at line 3")), tmp_path, monkeypatch
        )
    assert found is None
    assert not result
