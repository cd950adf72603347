"""What cannot be trained on with several agents is one line, and writes nothing."""

import json
import sys
from pathlib import Path

import pytest
from gymnasium import spaces
from parallel_envs import Matching
from pettingzoo import ParallelEnv

import hotloop
from hotloop.envs.check import check_env
from hotloop.envs.naming import env_from_outside, split_id
from hotloop.errors import SpecError
from hotloop.spec.reading import load_spec

pytestmark = pytest.mark.less_optimised

HERE = Path(__file__).parent
MODULE = "pettingzoo:parallel_envs"


class Continuous(Matching):
    def action_space(self, agent):
        return spaces.Box(-1.0, 1.0, (2,)) if agent == "large" else super().action_space(agent)


class Nameless(ParallelEnv):
    def __init__(self):
        self.metadata = {}

    def observation_space(self, agent):
        return spaces.Discrete(2)


def broken(**options):
    raise RuntimeError("no luck today")


not_a_function = 3


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"env.id": "pettingzoo:"}, "expected pettingzoo:module, or pettingzoo:module:Name"),
        ({"env.id": "pettingzoo:a:b:c"}, "expected pettingzoo:module, or pettingzoo:module:Name"),
        ({"env.id": "pettingzoo:no_such_module"}, "there is no module no_such_module"),
        ({"env.id": "pettingzoo:json"}, "the module json has no function or class parallel_env; name what makes"),
        ({"env.id": f"{MODULE}:Nobody"}, "the module parallel_envs has no function or class Nobody"),
        ({"env.id": "pettingzoo:test_parallel_bad_input:not_a_function"}, "has no function or class not_a_function"),
        ({"env.id": "pettingzoo:test_parallel_bad_input:broken"}, "RuntimeError: no luck today"),
        ({"env.id": "pettingzoo:test_parallel_bad_input:Nameless"}, "made a Nameless, without possible_agents"),
        ({"env.id": "pettingzoo:json:JSONDecoder"}, "made a JSONDecoder, no ParallelEnv"),
        ({"env.id": "pettingzoo:pettingzoo.classic.tictactoe_v3:env"}, "is an AEC env, whose agents act one after"),
        ({"env.id": "pettingzoo:test_parallel_bad_input:Continuous"}, r"agent large: the actions are Box\(-1.0"),
        ({"env.id": MODULE, "env.options": {"speed": 3}}, "env.options: .*'speed'"),
        ({"env.id": MODULE, "env.vectorization": "async"}, "stepped one after the other; use auto"),
        (
            {"env.id": MODULE, "pipeline": "concurrent"},
            "pipeline concurrent does not serve .* use sync, processes or auto",
        ),
        ({"env.id": MODULE, "pipeline": "fused"}, "pipeline fused does not serve .* use sync, processes or auto"),
        ({"env.id": MODULE, "env.action_mask": True}, "env.action_mask is not for envs with several agents"),
        ({"env.id": MODULE, "env.observe": ["x"]}, "agent small: env.observe chooses keys"),
        ({"env.id": MODULE, "agents.names": ["small", "tall"]}, "for 2 agents .small, tall., but the env has 2: "),
        ({"env.id": MODULE, "evaluation.options": {"alike": True}}, "evaluation.options change what the agent sees"),
        ({"env.id": MODULE, "evaluation.options": {"x": 1}}, "evaluation.options: env.options: .*'x'"),
        ({"env.id": MODULE, "env.info": ["gems"]}, "the env gave small no 'gems' at the end of its episode"),
        (
            {"env.id": MODULE, "agents.weights": "shared", "env.options.alike": True, "env.num_envs": 40}
            | {"replay.capacity": 64, "replay.batch_size": 8},
            "a turn of 40 env.s. gives a learner 80 transitions; use at least 80",
        ),
    ],
    ids=lambda value: str(value)[:70],
)
def test_it_is_refused_in_a_line(given, line, tmp_path):
    small = {"stop.steps": 100, "evaluation.every": 50, "replay.start": 10, "network.torso.hidden": [8], **given}
    with pytest.raises(hotloop.errors.HotloopError, match=line) as found:
        hotloop.train({}, out=tmp_path / "run", **small)
    assert "\n" not in str(found.value)
    if "env.info" not in given:  # which is known when the first episode ends
        assert isinstance(found.value, SpecError)
        assert not list(tmp_path.iterdir())


def test_an_instance_is_refused_in_favour_of_a_factory():
    with pytest.raises(SpecError, match="one instance of Matching, a ParallelEnv; give a factory"):
        hotloop.train({}, env=Matching(), out=None)


def test_without_pettingzoo_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("hotloop.envs.parallel_making.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"needs the package pettingzoo; pip install 'hotloop\[multi\]'"):
        hotloop.train({}, env=MODULE, out=None)


def test_agents_are_refused_for_an_env_that_has_one():
    with pytest.raises(SpecError, match="agents is for an env in which several act, but CartPole-v1 has one"):
        hotloop.train({"agents": {"weights": "shared"}}, env="CartPole-v1", out=None)


def test_a_check_says_who_acts_and_what_they_see():
    report = check_env(MODULE, {})
    said = [finding.text for finding in report.findings]
    assert report.is_sound
    assert said[0] == "2 agents: small, large"
    assert said[2] == "large: observations Discrete(4), actions Discrete(4)"
    assert any("come or go while others go on" in text for text in said)
    assert not check_env("pettingzoo:test_parallel_bad_input:Continuous", {}).is_sound


def test_a_run_of_a_stranger_may_name_no_module_of_pettingzoos():
    for env_id in (
        MODULE,
        "pettingzoo:pettingzoo.classic.rps_v2",
        "pettingzoo:ale_py",
        "pettingzoo:hotloop.envs.mario:x",
    ):
        named = env_from_outside(load_spec({"env": {"id": env_id}}))
        assert named == f"the module {split_id(env_id)[0]!r}"


SMALL = {
    "network": {"torso": {"hidden": [8]}},
    "env": {"num_envs": 2},
    "replay": {"capacity": 128, "start": 16, "batch_size": 8},
    "evaluation": {"every": 100, "episodes": 2},
    "stop": {"steps": 120},
}
MARK = "import pathlib; pathlib.Path(__file__).with_name('executed').touch()"


def test_a_module_of_the_current_folder_is_found_when_the_user_names_it_and_not_for_a_stranger(tmp_path, monkeypatch):
    text, mark = (HERE / "parallel_envs.py").read_text(), tmp_path / "executed"
    (tmp_path / "own_team.py").write_text(f"{text}\n{MARK}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != ""])

    def forgotten():
        sys.modules.pop("own_team", None)
        sys.path[:] = [place for place in sys.path if place != str(tmp_path)]
        mark.unlink(missing_ok=True)

    run = hotloop.train(SMALL, env="pettingzoo:own_team", out=tmp_path / "run").path
    assert mark.exists()
    forgotten()
    hotloop.load(run)  # of one's own
    assert mark.exists()
    forgotten()
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "signature": None}))
    for work in (hotloop.load, hotloop.resume):
        with pytest.raises(SpecError, match=r"names the module 'own_team', which would run as code.*add --trust"):
            work(run)
    assert not mark.exists()
    assert "own_team" not in sys.modules
    assert hotloop.load(run, trust=True).names == ("small", "large")
    assert mark.exists()
    forgotten()


def test_an_env_of_pettingzoos_own_is_trained_on(tmp_path):
    run = hotloop.train(
        {**SMALL, "stop": {"steps": 64}, "evaluation": {"every": 60, "episodes": 2, "max_share": 1.0}},
        env="pettingzoo:pettingzoo.classic.rps_v2",
        out=None,
    )
    assert run.env_steps == 64
    assert set(run.agent.predict({"player_0": 3, "player_1": 3})) == {"player_0", "player_1"}
