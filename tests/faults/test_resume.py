"""An interrupted and resumed run ends in the same bits as one that was left alone."""

import shutil
import signal

import pytest
from hotloop_process import TINY, checkpoints, contents, finish, manifest, metrics, start, wait_for

PERIODS = ("--set", "log={every: 1000, exact: true, checkpoint_every: 4000}", "--set", "evaluation.every=5000")
RATIOS = {"below one": ("0.125", 60_000), "above one": ("2.0", 40_000)}
TIMES = {"seconds", "env_steps_per_s", "updates_per_s"}


@pytest.fixture(scope="module", params=["below one", pytest.param("above one", marks=pytest.mark.heavy)])
def uninterrupted(request, tmp_path_factory, finished_once):
    """A folder with a run `whole` that was left alone, the arguments that made it, and its env steps."""
    ratio, steps = RATIOS[request.param]
    folder = tmp_path_factory.mktemp("resume")
    shutil.copy(finished_once.parent / "tiny.yaml", folder)
    made_by = ("train", "tiny.yaml", *PERIODS, "--set", f"updates_per_step={ratio}")
    ran = finish(start(*made_by, "--steps", str(steps), "--out", "whole", cwd=folder))
    assert ran.code == 0, ran.err
    return folder, made_by, steps


def _kill_amid(process, run, env_steps):
    """SIGKILL the process after a checkpoint at or beyond `env_steps`, and lines of metrics beyond that checkpoint."""

    def is_amid():
        saved = checkpoints(run)
        return saved and saved[-1] >= env_steps and metrics(run)[-1]["env_steps"] > saved[-1]

    wait_for(is_amid, process)
    process.send_signal(signal.SIGKILL)
    assert finish(process).code == -signal.SIGKILL


def _outcome(rows):
    """Metrics without the clock, by kind and step; a step that is there twice fails the test."""
    by_step = {(row["kind"], row["env_steps"]): {k: v for k, v in row.items() if k not in TIMES} for row in rows}
    assert len(by_step) == len(rows), "a step was written twice"
    return by_step


def test_a_run_killed_and_resumed_ends_in_the_same_bits(uninterrupted):
    folder, made_by, steps = uninterrupted
    run = folder / "killed"
    process = start(*made_by, "--steps", str(steps), "--out", "killed", cwd=folder)
    _kill_amid(process, run, 8_000)
    assert 8_000 <= checkpoints(run)[-1] < steps, "killed too late to say anything"
    ran = finish(start("resume", "killed", cwd=folder))
    assert ran.code == 0, ran.err
    expected = manifest(folder / "whole")
    assert set(expected["digests"]) >= {"learner", "actor", "replay", "key", "env_steps", "episodes", "all"}
    seen = manifest(run)
    assert seen["digests"] == expected["digests"]
    assert {k: seen[k] for k in ("evaluation", "best_return", "updates")} == {
        k: expected[k] for k in ("evaluation", "best_return", "updates")
    }
    assert _outcome(metrics(run)) == _outcome(metrics(folder / "whole"))
    for which in ("best", "last"):
        names = [f"{which}/arrays.safetensors", f"{which}/manifest.json"]
        assert [contents(run)[name] for name in names] == [contents(folder / "whole")[name] for name in names]


@pytest.mark.heavy
def test_a_run_that_was_made_longer_ends_in_the_same_bits(uninterrupted):
    folder, made_by, steps = uninterrupted
    run = folder / "longer"
    # The first end lies between two lines of metrics, checkpoints and evaluations.
    for args in ((*made_by, "--out", "longer", "--steps", "17777"), ("resume", "longer", "--steps", str(steps))):
        ran = finish(start(*args, cwd=folder))
        assert ran.code == 0, ran.err
    assert manifest(run)["digests"] == manifest(folder / "whole")["digests"]
    seen, expected = _outcome(metrics(run)), _outcome(metrics(folder / "whole"))
    assert {key: seen[key] for key in expected} == expected
    assert {step for _, step in set(seen) - set(expected)} <= {17780, 17784}, "lines of the first end only"


def test_the_digests_tell_two_different_runs_apart(uninterrupted, finished_once):
    folder, _, _ = uninterrupted
    one, other = manifest(folder / "whole")["digests"], manifest(finished_once)["digests"]
    assert [part for part in ("learner", "actor", "replay", "blocks", "all") if one[part] == other[part]] == []


def test_a_finished_run_is_resumed_without_harm_and_says_that_it_is_done(hotloop, finished):
    before = contents(finished)
    digests = manifest(finished)["digests"]
    ran = hotloop("resume", "run")
    assert ran.code == 0, ran.err
    assert "1,000 env steps done" in ran.out
    after = contents(finished)
    for name in ("metrics.jsonl", "spec.yaml", "run.json", "best/arrays.safetensors", "last/arrays.safetensors"):
        assert after[name] == before[name], f"{name} has changed"
    assert checkpoints(finished) == [800, 1000]
    assert manifest(finished)["digests"] == digests


@pytest.mark.heavy
def test_snakes_that_were_interrupted_end_in_the_same_bits(tmp_path):
    """Also when the first part ended amid a period: its last line and checkpoint are all that differs."""
    import hotloop

    spec = {
        **TINY,
        "env": {"id": "snake", "num_envs": 8, "options": {"grid": 6, "max_steps": 40}},
        "updates_per_step": 0.125,
        "evaluation": {"every": 400, "episodes": 4, "max_steps": 40},
    }
    whole = hotloop.train(spec, out=tmp_path / "whole", **{"stop.steps": 2000})
    first = hotloop.train(spec, out=tmp_path / "parts", **{"stop.steps": 700})
    hotloop.resume(first, steps=2000)
    assert manifest(tmp_path / "parts")["digests"] == manifest(whole.path)["digests"]
    assert whole.updates > 200
