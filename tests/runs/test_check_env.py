"""`hotloop check-env` finds what is wrong with an env and says it in one line each."""

import pytest

ENVS = """
import gymnasium, numpy
from gymnasium import spaces

class Good(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)
    t = 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.see(), {}
    def see(self):
        return self.np_random.uniform(-1, 1, 2).astype(numpy.float32)
    def step(self, action):
        self.t += 1
        return self.see(), 1.0, self.t > 9, False, {}

class Nan(Good):
    def step(self, action):
        self.t += 1
        return self.see(), 1.0 if self.t < 5 else float("nan"), self.t > 9, False, {}

class NanObs(Good):
    def see(self):
        return numpy.array([0, numpy.inf if self.t == 3 else 0], numpy.float32)

class Outside(Good):
    def see(self):
        return numpy.full(2, 3, numpy.float32)

class Alias(Good):
    kept = numpy.zeros(2, numpy.float32)
    def see(self):
        return self.kept

class Moody(Good):
    def see(self):
        return numpy.random.uniform(-1, 1, 2).astype(numpy.float32)

class Endless(Good):
    def step(self, action):
        return self.see(), 1.0, False, False, {}

class Raises(Good):
    def step(self, action):
        raise RuntimeError("out of cheese")

class Four(Good):
    def step(self, action):
        return self.see(), 1.0, False, {}

class Continuous(Good):
    action_space = spaces.Box(-1, 1, (1,))

for kind in (Good, Nan, NanObs, Outside, Alias, Moody, Endless, Raises, Four, Continuous):
    gymnasium.register(kind.__name__ + "-v0", entry_point=kind)
"""

WRONG = {
    "Nan": "a reward is nan",
    "NanObs": "holds NaN or infinity",
    "Outside": "is not in its space",
    "Raises": "RuntimeError: out of cheese",
    "Four": "step() must return",
    "Continuous": "needs Discrete ones",
}
NOTES = {"Alias": "reuses its observation array", "Moody": "cannot be repeated", "Endless": "no episode ended"}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The report of each env."""
    import sys

    folder = tmp_path_factory.mktemp("envs")
    (folder / "sick_envs.py").write_text(ENVS)
    sys.path.insert(0, str(folder))
    from hotloop.envs.check import check_env

    names = ["Good", *WRONG, *NOTES]
    yield {name: check_env(f"sick_envs:{name}-v0", {}) for name in names}
    sys.path.remove(str(folder))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(reports, name):
    assert not reports[name].is_sound
    assert any(level == "wrong" and WRONG[name] in text for level, text in reports[name].findings), reports[name]


@pytest.mark.parametrize("name", NOTES)
def test_what_one_should_know_is_said_and_does_not_count_as_wrong(reports, name):
    assert reports[name].is_sound
    assert any(level == "note" and NOTES[name] in text for level, text in reports[name].findings), reports[name]


def test_a_good_env_is_called_good_with_its_cost(reports):
    report = reports["Good"]
    assert {level for level, _ in report.findings} == {"ok"}, report
    assert 0 < report.us_per_step_of_16 < report.us_per_step * 16


def test_the_command_prints_one_line_each_and_exits_with_1_when_something_is_wrong(hotloop, tmp_path):
    found = hotloop("check-env", "CartPole-v1", "--json").json
    assert found["is_sound"]
    assert found["us_per_step"] > 0
    ran = hotloop("check-env", "Pendulum-v1")
    assert ran.code == 1
    assert "wrong  the actions are Box" in ran.out
    assert hotloop("check-env", "NoSuchEnv-v3").code == 1
