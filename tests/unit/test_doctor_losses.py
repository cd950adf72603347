"""What a run loses to the machine, its memory and longer episodes: the rules, by hand."""

import pytest
from examined import CALM

from hotloop import cores
from hotloop.cores import Throttled
from hotloop.doctor import losses
from hotloop.doctor.counters import Counters, Process, Used
from hotloop.doctor.course import Course, Piece, Third, collecting_of, course_of, growth_of
from hotloop.doctor.watch import Watch, drift_of, seen_between
from hotloop.replay import plan

ZERO = Counters(0.0, 100.0, 10.0, {1: 1.0}, {}, 0, 0, 0.0, {Process(-7, 1.0): Used("burns", 5.0)})


def piece(seconds=1.0, steps=100, episodes=10, step=0.5, update=0.2, collecting=0.0, grown=0):
    return Piece(steps, seconds, episodes, {"step": step, "update": update}, collecting, grown)


def test_others_are_what_the_cores_did_beside_the_run():
    later = ZERO._replace(at=10.0, busy=118.0, own=18.0, waited={1: 4.0, 2: 0.5})
    later = later._replace(others={Process(-7, 1.0): Used("burner", 13.0), Process(-8, 9.0): Used("new", 0.1)})
    seen = seen_between(ZERO, later, [1.0] * 6, cores=[0, 1])
    assert seen.others == pytest.approx(0.5)
    assert seen.waited == pytest.approx(0.3)
    assert [(other.name, round(other.share, 3)) for other in seen.top] == [("burner", 0.4)]
    assert seen.slower == 1.0
    assert "whether a control group held the process back" in seen.missing, "no group counts it here"


def test_what_cannot_be_read_is_missing_and_not_zero():
    blind = ZERO._replace(busy=None, waited=None, swapped=None, faults=None, stalled=None)
    seen = seen_between(blind, blind._replace(at=10.0), [], cores=[0])
    assert seen.others is seen.waited is seen.throttled is seen.slower is seen.swapped is seen.stalled is None
    assert len(seen.missing) == 7
    assert losses.of_machine(seen) == losses.of_memory(seen, 0.0, 0.5) == []
    assert "not known here" in losses.say_machine(seen, [])


def test_memory_is_known_where_no_group_has_a_limit(monkeypatch):
    monkeypatch.setattr(plan, "left_by_groups", dict)
    assert plan.available_host_memory() > 0


def test_a_group_held_back_half_of_the_time():
    before = ZERO._replace(throttled={"g": Throttled("g", 100, 10, 1.0), "calm": Throttled("calm", 0, 0, 0.0)})
    after = before._replace(
        at=10.0, throttled={"g": Throttled("g", 200, 90, 6.0), "calm": Throttled("calm", 0, 0, 0.0)}
    )
    seen = seen_between(before, after, [], cores=[0])
    assert seen.throttled == pytest.approx(0.5)
    found = [loss for loss in losses.of_machine(seen) if loss.where == "control group"]
    assert [loss.is_verdict for loss in found] == [losses.FIRST]


@pytest.mark.parametrize(
    ("name", "line", "text"),
    [
        ("user/cpu.stat", "0::/user", "usage_usec 9\nnr_periods 8\nnr_throttled 4\nthrottled_usec 2500000\n"),
        ("cpu/a/cpu.stat", "1:cpu,cpuacct:/a", "nr_periods 8\nnr_throttled 4\nthrottled_time 2500000000\n"),
    ],
)
def test_groups_of_both_versions_count_it(name, line, text, tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "GROUPS", tmp_path)
    monkeypatch.setattr(cores, "OF_PROCESS", tmp_path / "of_process")
    (tmp_path / "of_process").write_text(f"{line}\n")
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    assert [found[1:] for found in cores.throttled_by_groups().values()] == [(8, 4, 2.5)]


@pytest.mark.parametrize(
    ("others", "waited", "share", "is_verdict"),
    [
        (0.7, 0.5, 0.5, losses.FIRST),
        (0.7, None, 0.7, losses.FIRST),
        (0.7, 0.05, 0.05, losses.BY_SHARE),  # on cores that the run does not need
        (0.3, 0.6, 0.3, losses.BY_SHARE),  # threads of the run wait for each other
        (0.2, 0.05, None, None),
        (0.0, 0.9, None, None),
    ],
)
def test_others_count_by_what_the_run_lost_to_them(others, waited, share, is_verdict):
    found = losses.of_machine(CALM._replace(others=others, waited=waited))
    assert [(loss.share, loss.is_verdict) for loss in found] == ([] if share is None else [(share, is_verdict)])


def test_a_processor_that_becomes_slower_is_told_and_no_verdict():
    assert drift_of([1.0] * 4 + [1.2] * 4 + [1.5] * 4)[0] == pytest.approx(1.5)
    assert drift_of([1.0]) == (None, None)
    (found,) = losses.of_machine(CALM._replace(slower=1.5))
    assert (found.is_verdict, found.share) == (losses.NEVER, pytest.approx(1 / 3))


def test_garbage_collection_is_the_verdict_where_it_is_most_of_the_largest_stage():
    assert losses.of_memory(CALM, 0.09, largest=0.9) == []
    assert [loss.is_verdict for loss in losses.of_memory(CALM, 0.3, largest=0.9)] == [losses.BY_SHARE]
    assert [loss.is_verdict for loss in losses.of_memory(CALM, 0.5, largest=0.9)] == [losses.FIRST]


def test_swapping_counts_where_the_run_waited_for_pages():
    assert losses.of_memory(CALM._replace(swapped=1 << 20, faults=3), 0.0, 0.5) == []
    swaps = CALM._replace(swapped=1 << 30, faults=10_000, stalled=0.4)
    assert [loss.share for loss in losses.of_memory(swaps, 0.0, 0.5)] == [0.4]
    (found,) = losses.of_memory(swaps._replace(stalled=None), 0.0, 0.5)
    assert found.share == pytest.approx(0.1)
    assert "estimated" in found.evidence[1]


def test_growth_that_does_not_fit_is_told():
    leaks = [piece(grown=100_000)] * 6
    assert growth_of(leaks) == pytest.approx(1000.0)
    assert growth_of([piece(grown=900_000), *[piece()] * 5]) == 0.0, "taken once"
    assert growth_of([piece(grown=None)] * 4) is None
    (found,) = losses.of_growth(CALM, 1000.0, steps=10_000_000, capacity=500)
    assert found.share == pytest.approx(1 - (1 << 30) / 1e10, abs=1e-3)
    assert found.is_verdict == losses.NEVER
    assert losses.of_growth(CALM, 1000.0, steps=1_000, capacity=500) == []


def test_a_gpu_that_is_not_used_is_told_where_gradient_steps_take_long():
    has = CALM._replace(has_gpu=True)
    assert [loss.where for loss in losses.of_gpu(has, "torch cpu", 0.6)] == ["GPU"]
    assert losses.of_gpu(has, "gpu", 0.6) == losses.of_gpu(has, "cpu", 0.1) == losses.of_gpu(CALM, "cpu", 0.6) == []


def test_longer_episodes_are_not_slower_steps():
    longer = course_of([*[piece(episodes=20)] * 4, *[piece(episodes=5)] * 4])
    assert longer is not None
    assert longer.longer == pytest.approx(4.0)
    (found,) = losses.of_episodes(longer, counts_episodes=True)
    assert (found.cause, found.share, found.is_verdict) == ("longer-episodes", pytest.approx(0.75), losses.BY_SHARE)
    assert losses.of_episodes(longer, counts_episodes=False)[0].is_verdict == losses.NEVER
    slower = course_of([*[piece()] * 4, *[piece(seconds=2.0, step=1.4)] * 4])
    assert slower is not None
    assert (slower.grew, slower.has_longer_episodes) == ("step", False)
    assert course_of([piece()] * 3) is None


def test_few_episodes_say_nothing():
    few = Course(Third(1.0, 100, 4, {}), Third(1.0, 100, 2, {}))
    assert few.longer is None
    assert not few.has_longer_episodes
    by_chance = Course(Third(1.0, 100, 6, {}), Third(1.0, 100, 4, {}))
    assert by_chance.longer == pytest.approx(1.5)
    assert not by_chance.has_longer_episodes


def test_a_watch_hears_of_garbage_collection_and_leaves_nothing_behind(monkeypatch):
    import gc

    monkeypatch.setattr("hotloop.doctor.watch.SHORTEST", 3_600.0)

    before = list(gc.callbacks)
    with Watch() as watch:
        gc.collect()
        watch.look()
    assert gc.callbacks == before
    assert watch.collecting > 0
    assert watch.watched().others is None, "watched for too short a time"
    assert collecting_of([piece(collecting=0.25)] * 2) == pytest.approx(0.25)
