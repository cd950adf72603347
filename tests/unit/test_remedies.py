"""Which settings are proposed, and what the model predicts of them: from figures, without measuring."""

import pytest
from examined import WHOLE, seen

from hotloop.doctor.alternatives import Alternatives, Way
from hotloop.doctor.remedies import less_work, same_result

STAGES = {"step": 0.5, "select": 0.05, "insert": 0.02, "sample": 0.03, "update": 0.4}


def proposed(examined, cores=2):
    return {remedy.options: remedy.predicted for remedy in same_result(examined, cores)}


def test_envs_stepped_another_way_take_as_much_less_as_they_did_by_themselves():
    found = proposed(seen(**STAGES)._replace(alternatives=Alternatives({"async": 0.5, "threads": 1.2})))
    assert found["--set env.vectorization=async"] == pytest.approx(1 / 0.75)
    assert not any("threads" in options for options in found), "what is slower is not proposed"


def test_gradient_steps_by_other_means_count_for_their_share():
    ways = [Way({"engine": "jax"}, 0.25, 1, True), Way({"threads": 2}, 0.5, 2, True)]
    found = proposed(seen(**STAGES)._replace(alternatives=Alternatives(updates=ways)))
    assert found["--set engine=jax"] == pytest.approx(1 / 0.7)
    assert found["--set threads=2"] == pytest.approx(1 / 0.8)


def test_settings_go_together_only_where_each_adds_something():
    both = Alternatives({"async": 0.5}, [Way({"engine": "jax"}, 0.25, 1, True), Way({"threads": 2}, 0.999, 2, True)])
    found = proposed(seen(**STAGES)._replace(alternatives=both))
    together = "--set env.vectorization=async --set engine=jax"
    assert found[together] == pytest.approx(1 / 0.45)
    assert not any("threads" in options for options in found)
    assert next(iter(found.values())) == max(found.values()), "the best first"


def test_no_pipeline_does_more_work_than_there_are_cores():
    busy = seen(**STAGES)._replace(at_work=2 * WHOLE)
    assert not any("pipeline" in options for options in proposed(busy)), "both cores are at work all the time"
    idle = seen(**STAGES)._replace(at_work=0.5 * WHOLE)
    assert any("pipeline=concurrent" in options for options in proposed(idle))
    assert not any("concurrent" in options for options in proposed(idle, cores=1))


def test_actors_put_steps_in_order_and_new_weights_are_rare():
    two = "--set pipeline=processes --set actors.count=2"
    examined = seen(**STAGES)._replace(new_weights=0.1 * WHOLE)
    acting, learning = 0.5 + 0.05 + 0.02, 0.03 + 0.4 - 0.1
    assert proposed(examined)[two] == pytest.approx(2 / (acting + learning)), "two cores share it"
    assert proposed(examined, cores=8)[two] == pytest.approx(1 / learning), "actors have packed what the learner stores"


def test_each_side_is_warmer_on_a_core_of_its_own():
    stages = dict(seen(**STAGES).stages)
    stages["update"] = stages["update"]._replace(alone=0.3 * WHOLE)
    found = proposed(seen(**STAGES)._replace(stages=stages))
    update = 0.4 - (0.4 - 0.3) * 0.57 / 0.6
    two = "--set pipeline=processes --set actors.count=2"
    assert found[two] == pytest.approx(2 / (0.5 + 0.05 + 0.02 + 0.03 + update))


def test_less_work_is_kept_apart():
    ways = [Way({"replay.batch_size": 32}, 0.5, 1, False), Way({"threads": 1}, 0.5, 1, True)]
    examined = seen(**STAGES)._replace(alternatives=Alternatives(updates=ways))
    less = {remedy.options: remedy.predicted for remedy in less_work(examined)}
    assert less["--set replay.batch_size=32"] == pytest.approx(1 / 0.8)
    assert less["--set updates_per_step=0.125"] == pytest.approx(1 / (1 - 0.5 * 0.43))
    assert "--set threads=1" not in less
    assert not any("batch_size" in options or "updates_per_step" in options for options in proposed(examined))
    assert not any(remedy.can_be_raced for remedy in less_work(examined))
