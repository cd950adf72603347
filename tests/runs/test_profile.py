"""A profile trains to the same bits, names every stage, and tells a longer life from a slower step."""

import json

import pytest
from hotloop_process import manifest, strict_json

from hotloop.profiling.report import build, course_of
from hotloop.profiling.stages import Stages
from hotloop.spec.reading import load_spec

STAGES = ["select", "env step", "insert", "sample", "target", "forward", "backward", "optimiser", "rest"]

SLOW_ENV = """
import gymnasium, numpy, time

class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, broken=False, render_mode=None):
        self.broken = broken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        1 / (not self.broken)
        return self.observe(), 0.0, False, False, {}

    def observe(self):
        return dawdle()

def dawdle():
    total = 0.0
    for i in range(3000):
        total += i * 0.5
    return numpy.zeros(2, numpy.float32) + numpy.float32(total * 0)

gymnasium.register("Slow-v0", entry_point=Slow)
"""


def test_a_profiled_run_is_the_same_run_and_names_every_stage(hotloop, finished_once, tmp_path):
    ran = hotloop("profile", "tiny.yaml", "--out", "run", "--json")
    assert ran.code == 0, ran.err
    result = strict_json(ran.out.splitlines()[-1])
    profile = result["profile"]
    assert manifest(tmp_path / "run")["digests"] == manifest(finished_once)["digests"]
    assert [row["stage"] for row in profile["stages"]] == STAGES
    assert all(row["us_per_block"] >= 0 for row in profile["stages"] if row["stage"] not in ("rest", "backward"))
    assert sum(row["share"] for row in profile["stages"]) == pytest.approx(1.0, abs=0.01)
    assert profile["block"] == {"env_steps": 4, "vector_steps": 1, "updates": 1}
    assert profile["q_loss"]["calls"] == result["updates"]
    assert 0 < profile["q_loss"]["mean_ms"] < profile["q_loss"]["mean_ms_with_gradient_and_step"]
    assert profile["episodes"]["env_steps"] == 1000
    assert profile["episodes"]["steps_per_episode"] == pytest.approx(1000 / profile["episodes"]["episodes"], rel=1e-3)
    assert json.loads((tmp_path / "run" / "profile.json").read_text()) == profile
    assert (tmp_path / "run" / "profile.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.heavy
def test_a_device_env_is_profiled_by_sync_as_by_fused(hotloop, tmp_path):
    ran = hotloop("profile", "tiny.yaml", "--out", "run", "--json", "--set", "pipeline=sync")
    assert ran.code == 0, ran.err
    assert [row["stage"] for row in strict_json(ran.out.splitlines()[-1])["profile"]["stages"]] == STAGES


@pytest.mark.heavy
def test_a_profile_of_two_seeds_of_snake_shows_features_and_flood_fill_within_the_env_step(hotloop):
    small = ("--set", "env={id: snake, num_envs: 8, options: {grid: 6}}", "--set", "updates_per_step=0.125")
    ran = hotloop("profile", "tiny.yaml", *small, "--set", "seeds=2", "--out", "snake")
    assert ran.code == 0, ran.err
    for said in ("select", "features", "flood fill in them", "sum of stages", "Q-loss: ", "steps per episode"):
        assert said in ran.out, ran.out


@pytest.mark.slow
def test_the_fused_block_is_timed_as_it_runs(hotloop, tmp_path):
    """Within a wide margin of the speed of the run itself, however small a block is, and whatever the target rule."""
    for rule in ("vanilla", "double"):
        ran = hotloop(
            "profile", "tiny.yaml", "--steps", "30000", "--set", f"target.rule={rule}", "--out", rule, "--json"
        )
        profile = ran.json["profile"]
        run_us = profile["block"]["env_steps"] / profile["env_steps_per_s"] * 1e6
        assert run_us / 8 < profile["fused_us"] < run_us * 8, rule
        target = next(row for row in profile["stages"] if row["stage"] == "target")
        assert (target["us_per_block"] > 0) == (rule == "double")


def test_a_run_too_short_to_learn_is_refused(hotloop):
    assert "nothing to profile" in hotloop("profile", "tiny.yaml", "--steps", "50").refusal


@pytest.mark.heavy
def test_a_run_that_never_learns_has_no_profile(hotloop):
    ran = hotloop("profile", "tiny.yaml", "--set", "replay.start=512", "--set", "stop.episodes=1", "--json")
    assert "profile" not in ran.json
    assert "before learning began" in ran.err


@pytest.mark.heavy
def test_a_profile_that_cannot_be_written_is_still_told(hotloop, tmp_path):
    (tmp_path / "run" / "profile.json").mkdir(parents=True)
    before = "from hotloop.runs import folder; folder.RunFolder.choose = classmethod(lambda c, s, o: c(o))"
    ran = hotloop("profile", "tiny.yaml", "--out", "run", "--json", before=before)
    assert "could not be written" in ran.json["disk_error"]
    assert [row["stage"] for row in ran.json["profile"]["stages"]] == STAGES


@pytest.mark.heavy
def test_a_training_is_profiled_on_a_terminal_when_the_environment_says_so(tmp_path, spec_file):
    import os
    import pty
    import subprocess
    import sys

    main, end = pty.openpty()
    command = [sys.executable, "-m", "hotloop.cli", "train", "tiny.yaml", "--out", "run"]
    env = {**os.environ, "PROFILE": "true"}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=end)
    os.close(end)
    seen = b""
    try:
        while chunk := os.read(main, 65536):
            seen += chunk
    except OSError:  # the other end is closed
        pass
    assert process.wait() == 0, seen.decode(errors="replace")[-2000:]
    assert b"rounds of all stages" in seen
    assert (tmp_path / "run" / "profile.json").is_file()


def _rows(lengths, speeds):
    """Metrics of a run whose episodes had these lengths and whose steps these speeds, 1,000 steps a line."""
    rows, episodes = [], 0
    for i, (length, speed) in enumerate(zip(lengths, speeds, strict=True)):
        episodes += 1000 // length
        rows.append(
            {"kind": "train", "env_steps": 1000 * (i + 1), "env_steps_per_s": float(speed), "episodes": episodes}
        )
    return rows


def _report(lengths, speeds):
    spec = load_spec("cartpole", {"replay.start": 1000})
    names = ["select", "env step", "insert", "sample", "target", "forward", "backward", "optimiser"]
    stages = Stages({name: [1e-5] for name in names}, {}, [5e-5], [1e-4])
    result = {"updates": 5, "skipped": 0, "env_steps_per_s": 1.0, "updates_per_s": 1.0}
    result |= {"env_steps": 9000, "episodes": 10, "steps_per_episode": 900.0}
    return build(spec, stages, result, _rows(lengths, speeds))


@pytest.mark.parametrize(
    ("lengths", "speeds", "verdict"),
    [
        ([10] * 3 + [50] * 6, [2000] * 9, "because the agent lives longer; a step is not slower"),
        ([20] * 9, [4000] * 4 + [1000] * 5, "a step became slower"),
        ([10] * 3 + [50] * 6, [4000] * 3 + [1000] * 6, "for both reasons"),
        ([20] * 9, [2000] * 9, "neither episodes nor steps"),
    ],
)
def test_a_longer_life_is_told_from_a_slower_step(lengths, speeds, verdict):
    assert verdict in _report(lengths, speeds)["says"][-1]


def test_the_course_is_what_the_metrics_say():
    spec = load_spec("cartpole", {"replay.start": 1000})
    course = course_of(_rows([10] * 5 + [50] * 4, [2000] * 5 + [500] * 4), spec)
    assert course[0] == {
        "env_steps": 2000,
        "us_per_step": 500.0,
        "env_steps_per_s": 2000.0,
        "episodes": 100,
        "steps_per_episode": 10.0,
        "ms_per_episode": 5.0,
    }
    assert (course[-1]["steps_per_episode"], course[-1]["ms_per_episode"]) == (50.0, 100.0)
    assert course_of([], spec) == []
    assert "too few lines" in _report([10], [100])["says"][-1]


def test_the_functions_of_a_python_env_are_named_by_the_time_they_take(hotloop, tmp_path):
    (tmp_path / "slow_env.py").write_text(SLOW_ENV)
    ran = hotloop("profile", "--env", "slow_env:Slow-v0", "--json", env={"PYTHONPATH": str(tmp_path)})
    found = ran.json
    first = found["functions"][0]
    assert first["function"].endswith(" dawdle")
    assert first["yours"]
    assert first["share"] > 0.5
    assert first["calls_per_step"] == pytest.approx(1.0, abs=0.05)
    assert first["own_us_per_step"] <= first["with_callees_us_per_step"]
    assert found["us_per_step"] == pytest.approx(1e6 / found["steps_per_s"], rel=0.01)
    assert not any(row["yours"] for row in found["functions"] if "gymnasium" in row["function"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--env", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["--env", "slow_env:Slow-v0", "--set", "env.options.broken=true"], "ZeroDivisionError"),
        (["--env", "slow_env:Slow-v0", "--steps", "3"], "--steps has no meaning here"),
        *(
            pytest.param(["--env", *args], said, marks=pytest.mark.heavy)
            for args, said in (
                (["no_such_module:Thing-v0"], "no_such_module"),
                (["slow_env:Slow-v0", "--set", "env.options.unknown=3"], "unknown"),
                (["slow_env:Slow-v0", "--set", "replay.start=3"], "replay.start has no meaning here"),
            )
        ),
    ],
)
def test_an_env_that_cannot_be_stepped_is_refused(hotloop, tmp_path, args, said):
    (tmp_path / "slow_env.py").write_text(SLOW_ENV)
    assert said in hotloop("profile", *args, env={"PYTHONPATH": str(tmp_path)}).refusal


def test_a_profile_of_nothing_is_refused(hotloop):
    assert "say what to train" in hotloop("profile").refusal


def test_a_host_run_too_short_for_a_profile_is_refused_before_it_is_trained(hotloop, tmp_path):
    short = ("--env", "CartPole-v1", "--steps", "1999", "--set", "replay.start=1000", "--set", "log.every=1000")
    refusal = hotloop("train", *short, "--out", "run", env={"PROFILE": "true"}).refusal
    assert "two lines of metrics after learning begins at 1,000" in refusal
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("pipeline", ["sync", pytest.param("concurrent", marks=pytest.mark.heavy)])
def test_a_host_run_is_profiled_by_its_own_spans_to_the_same_bits(hotloop, tmp_path, pipeline):
    small = (
        *("--env", "CartPole-v1", "--pipeline", pipeline, "--steps", "1500"),
        *("--set", "env.num_envs=4", "--set", "network.torso.hidden=[16]", "--set", "log.every=250"),
        *(
            "--set",
            "replay={capacity: 512, start: 64, batch_size: 16}",
            "--set",
            "evaluation={every: 500, episodes: 4}",
        ),
    )
    profiled = hotloop("train", *small, "--out", "profiled", "--json", env={"PROFILE": "true"}).json["profile"]
    assert hotloop("train", *small, "--out", "plain").code == 0
    assert manifest(tmp_path / "profiled")["digests"] == manifest(tmp_path / "plain")["digests"]
    shares = {row["stage"]: row["share"] for row in profiled["stages"]}
    assert {"select", "step", "insert", "sample", "transfer", "update", "evaluate", "log", "rest"} <= set(shares)
    assert shares["evaluate"] > 0
    assert 0 < profiled["outside_env_and_update"] < 1
    if pipeline == "sync":
        assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert any("the costliest stage is" in line for line in profiled["says"])
    trace = json.loads((tmp_path / "profiled" / "trace.json").read_text())["traceEvents"]
    spans = [event for event in trace if event["ph"] == "X"]
    assert {"select", "step", "insert", "sample", "update"} <= {event["name"] for event in spans}
    assert all(event["dur"] >= 0 <= event["ts"] for event in spans)
    assert len({event["tid"] for event in spans}) == (2 if pipeline == "concurrent" else 1)
    assert (tmp_path / "profiled" / "profile.png").stat().st_size > 10_000
