"""`import hotloop`: train, resume, load."""

import copy

import numpy as np
import pytest
from hotloop_process import TINY, checkpoints, manifest, metrics
from safetensors.numpy import load_file

import hotloop
from hotloop.errors import SpecError

pytestmark = pytest.mark.less_optimised

OBS = np.linspace(-0.2, 0.2, 4 * 32, dtype=np.float32).reshape(32, 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return hotloop.train(TINY, out=tmp_path_factory.mktemp("api") / "run", seed=3, **{"stop.steps": 600})


@pytest.fixture(scope="module")
def agent(run):
    return hotloop.load(run)


def test_a_mapping_is_trained_with_overrides(run):
    assert run.env_steps == 600
    spec = hotloop.load_spec(run.path / "spec.yaml")
    assert (spec.seed, spec.stop.steps) == (3, 600)
    assert TINY["stop"] == {"steps": 1000}, "the caller's own mapping is left alone"


def test_a_run_has_its_figures_as_attributes(run):
    assert run.updates == (600 - 64) // 4 + 1
    assert run.return_mean == metrics(run.path, "eval")[-1]["return_mean"]
    assert run.result["episodes"] == run.episodes
    assert str(run.path) in repr(run)
    with pytest.raises(AttributeError, match="env_steps"):
        run.no_such_figure  # noqa: B018


def test_a_preset_is_trained_by_its_name(tmp_path):
    small = {name: TINY[name] for name in ("env", "replay", "evaluation", "log")}
    small.update({"network.torso": TINY["network"]["torso"], "stop.steps": 80})
    run = hotloop.train("cartpole", out=str(tmp_path / "run"), **small)
    assert run.env_steps == 80
    spec = hotloop.load_spec(run.path / "spec.yaml")
    assert spec.name == "cartpole"
    assert spec.target.rule == "double", "the preset's own choice where nothing overrides it"


def test_a_mapping_given_as_network_is_the_network_of_the_spec(tmp_path):
    run = hotloop.train(TINY, out=tmp_path / "run", network=TINY["network"], **{"stop.steps": 80})
    assert hotloop.load_spec(run.path / "spec.yaml").network.torso.hidden == (16,)


def test_a_bad_spec_raises_an_error_with_the_nearest_name(tmp_path):
    with pytest.raises(SpecError, match="did you mean 'replay'"):
        hotloop.train(TINY, out=tmp_path / "run", replya={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", [hotloop.train, hotloop.profile, hotloop.load], ids=lambda call: call.__name__)
def test_a_misspelt_argument_raises_an_error_with_the_nearest_one(call):
    near = {"reporter": "reportr"}
    near |= {"on_evaluation": "on_evaluate", "listeners": "listener"} if call is hotloop.train else {}
    for name, misspelt in near.items():
        with pytest.raises(SpecError, match=f"^{misspelt}: hotloop.{call.__name__} has no such .*'{name}'"):
            call("cartpole", **{misspelt: None})


def test_a_field_of_a_section_is_named_with_its_section():
    with pytest.raises(SpecError, match=r"^steps: unknown key; did you mean 'stop\.steps'"):
        hotloop.train("cartpole", out=None, steps=1000)


def test_a_taken_folder_raises_an_error(run):
    with pytest.raises(SpecError, match="already exists"):
        hotloop.train(TINY, out=run.path)


def test_predict_takes_one_observation_or_a_batch(agent):
    actions = agent.predict(OBS)
    assert actions.shape == (32,)
    assert set(actions.tolist()) <= {0, 1}
    single = agent.predict(OBS[5])
    assert isinstance(single, int)
    assert [agent.predict(obs) for obs in OBS[:6]] == actions[:6].tolist()
    assert agent.predict(OBS[5].tolist()) == single


def test_predict_chooses_the_largest_q_value(agent):
    q_BA = agent.q_values(OBS)
    assert q_BA.shape == (32, 2)
    assert np.array_equal(np.argmax(q_BA, axis=1), agent.predict(OBS))
    assert np.allclose(agent.q_values(OBS[0]), q_BA[0], atol=1e-6)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (), (2, 2, 4)])
def test_an_observation_of_the_wrong_shape_is_refused(agent, shape):
    with pytest.raises(ValueError, match=r"shape .* expected \(4,\)"):
        agent.predict(np.zeros(shape, np.float32))


def test_without_determinism_the_agent_explores(run):
    agent = hotloop.load(run)  # at the end of the run ε is 0.43: one action in five is not the best
    same = np.repeat(OBS[:1], 2000, axis=0)
    best = agent.predict(same[0])
    share = np.mean(agent.predict(same, deterministic=False) != best)
    epsilon = metrics(run.path, "train")[-1]["epsilon"]
    assert share == pytest.approx(epsilon / 2, abs=0.05)
    assert not np.array_equal(agent.predict(same, deterministic=False), agent.predict(same, deterministic=False))
    assert np.all(agent.predict(same) == best)


def test_best_and_last_weights_are_those_that_were_saved(run):
    for which in ("best", "last"):
        saved = load_file(run.path / which / "arrays.safetensors")
        agent = hotloop.load(run.path, which=which)
        named = agent.engine.to_named(agent.weights)
        assert set(named) == set(saved)
        assert all(np.array_equal(named[name], saved[name]) for name in saved)


def test_last_weights_are_those_of_the_newest_checkpoint(run):
    newest = load_file(run.path / "checkpoints" / f"{checkpoints(run.path)[-1]:012d}" / "arrays.safetensors")
    assert np.array_equal(hotloop.load(run, which="last").weights, newest["learner/params"])


def test_evaluating_the_same_seed_twice_gives_the_same_figures(agent):
    assert agent.evaluate(episodes=5, seed=1) == agent.evaluate(episodes=5, seed=1)
    assert agent.evaluate(episodes=5, seed=1)["episodes"] == 5


def test_resume_continues_a_run(tmp_path):
    run = hotloop.train(TINY, out=tmp_path / "run", **{"stop.steps": 200})
    longer = hotloop.resume(run, steps=400)
    assert longer.path == run.path
    assert longer.env_steps == 400
    assert manifest(run.path)["env_steps"] == 400


def test_a_run_can_be_copied(run):
    assert copy.copy(run).env_steps == run.env_steps
