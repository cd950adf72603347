"""Which cause a stage is, by what the machine can do: from figures, without measuring."""

import pytest
from examined import WHOLE, seen

from hotloop.doctor.alternatives import Alternatives, Way
from hotloop.doctor.causes import WORDS, causes_of, verdict_of
from hotloop.doctor.diagnosis import Diagnosis
from hotloop.doctor.limits import envs_at_once
from hotloop.doctor.report import at_limits, figures_of, sentence
from hotloop.spec.reading import load_spec


def cause_of(examined, where="update"):
    return next(cause for cause in causes_of(examined) if cause.where == where)


FEW = {"updates_per_step": 0.25}
SHARES = {"update": 0.6, "sample": 0.3}


def test_a_gradient_step_is_bound_by_arithmetic_or_by_overhead():
    arithmetic = cause_of(seen(FEW, products=0.6, **SHARES))
    assert arithmetic.cause == "update-arithmetic"
    assert arithmetic.changes_algorithm
    assert arithmetic.at_limit == pytest.approx(0.6)
    assert "60% of it are its matrix products" in " ".join(arithmetic.evidence)
    assert "arithmetic binds it" in arithmetic.evidence
    dispatch = cause_of(seen(FEW, products=0.1, **SHARES))
    assert dispatch.cause == "update-dispatch"
    assert "overhead binds it" in dispatch.evidence
    assert "learn_every" in dispatch.remedy
    assert dispatch.changes_algorithm, "when it learns is another algorithm"
    unknown = cause_of(seen(FEW, limits=False, **SHARES))
    assert "was not measured" in " ".join(unknown.evidence)


def test_on_a_busy_machine_arithmetic_is_what_it_is_by_itself():
    examined = seen(FEW, products=0.4, **SHARES)
    alone = examined.limits.products.seconds / 0.9
    busy = cause_of(examined._replace(limits=examined.limits._replace(gradient_step=alone)))
    assert busy.cause == "update-arithmetic"
    assert busy.at_limit == pytest.approx(0.4), "it could be faster on another day"
    assert "90% of a gradient step by itself" in " ".join(busy.evidence)


def test_overhead_of_torch_is_less_when_compiled_or_with_jax_at_the_same_result():
    eager = cause_of(seen({**FEW, "engine": "torch"}, products=0.1, **SHARES))
    assert "--set torch.mode=compiled or --engine jax" in eager.remedy
    assert not eager.changes_algorithm
    compiled = cause_of(seen({**FEW, "engine": "torch", "torch.mode": "compiled"}, products=0.1, **SHARES))
    assert "torch.mode" not in compiled.remedy
    assert "--engine jax" in compiled.remedy


def test_what_is_proposed_against_overhead_is_a_spec():
    for changes in (
        FEW,
        {"turns": {"every": 8, "updates": 1}, "env.num_envs": 1},
        {"replay.sampling": {"kind": "prioritized", "updates_per_draw": 1}, "updates_per_step": 0.5},
    ):
        examined = seen(changes, products=0.1, **SHARES)
        words = cause_of(examined).remedy.partition(":")[0].replace("--set ", "").split()
        load_spec(examined.spec, {name: int(value) for name, value in (word.split("=") for word in words)})
        assert words


def test_many_gradient_steps_are_the_cause_only_where_they_take_most():
    many = {"updates_per_step": 1.0}
    most = cause_of(seen(many, products=0.1, **SHARES))
    assert most.cause == "update-count"
    assert "overhead binds it" in most.evidence
    assert "updates_per_step=0.5" in most.remedy
    assert cause_of(seen(many, products=0.1, update=0.3, sample=0.6)).cause == "update-dispatch"


def test_nothing_is_wrong_at_the_limit_and_the_sentence_says_how_near():
    at_limit = seen(FEW, products=0.87, **SHARES)
    verdict = verdict_of(causes_of(at_limit))
    assert verdict is not None
    assert verdict.cause == "nothing-wrong"
    assert "at 87% of the machine's limit" in sentence(causes_of(at_limit))
    assert figures_of(Diagnosis(at_limit, []))["verdict"]["confidence"] == "high"
    assert verdict_of(causes_of(seen(FEW, products=0.84, **SHARES))).cause == "update-arithmetic"
    other = seen(FEW, products=0.9, update=0.3, sample=0.6)
    assert verdict_of(causes_of(other)).cause == "replay-sample", "another stage is the verdict"


COSTLY = {"bare_step": 0.5 * WHOLE, "in_turn": True, "step": 0.6, "update": 0.1}


@pytest.mark.parametrize(
    ("changes", "known", "cause"),
    [
        ({}, {}, "env-one-at-a-time"),
        ({}, {"pipeline": "concurrent"}, "env-one-at-a-time"),
        ({"env.num_envs": 1}, {}, "env-step"),
        ({}, {"cores": 1}, "env-step"),
        ({}, {"bare_step": 1e-4}, "env-step"),
        ({}, {"in_turn": False}, "env-step"),
        ({"env.vectorization": "async"}, {"in_turn": False, "bare_step": 0.1 * WHOLE}, "env-transport"),
        ({"env.vectorization": "async"}, {"in_turn": False, "bare_step": 0.5 * WHOLE}, "env-step"),
        ({}, {"limits": False}, "env-step"),
        ({}, {"bare_step": None}, "env-step"),
    ],
)
def test_an_env_is_slow_by_itself_or_by_the_way_it_is_stepped(changes, known, cause):
    found = cause_of(seen({**FEW, **changes}, **{**COSTLY, **known}), "step")
    assert found.cause == cause
    assert cause in WORDS
    assert not found.changes_algorithm


def test_evidence_says_how_far_a_stage_is_from_its_limit():
    examined = seen(FEW, products=0.5, bare_step=0.3 * WHOLE, step=0.4, sample=0.2, update=0.4)
    assert "75% of it is the env itself" in cause_of(examined, "step").evidence
    assert "20x the time of copying the same bytes" in cause_of(examined, "sample").evidence
    line = at_limits(examined)
    assert line.count(";") == 2
    assert "update: 50% of it are its matrix products" in line
    limits = figures_of(Diagnosis(examined, []))["limits"]
    assert limits["least"]["step"] == pytest.approx(0.3 * WHOLE)
    assert limits["products"]["flops"] == 1e6
    assert at_limits(seen(limits=False, update=0.5)) == ""


def test_envs_step_at_once_where_they_are_in_processes_and_cores_allow_it():
    def at_once(busy, **env):
        return envs_at_once(load_spec({}, {f"env.{name}": value for name, value in env.items()}), busy, cores=2)

    assert at_once(1.0, num_envs=8) == 1
    assert at_once(1.0, num_envs=8, vectorization="async") == 2
    assert at_once(0.1, num_envs=8, vectorization="async") == 8
    assert at_once(1.0, num_envs=1, vectorization="threads") == 1


def test_other_threads_are_the_cause_where_they_are_much_faster():
    examined = seen({**FEW, "threads": 16}, products=0.9, **SHARES)
    faster = Alternatives(updates=[Way({"threads": 1}, 0.4, 1, True), Way({"threads": 2}, 0.6, 2, True)])
    cause = cause_of(examined._replace(alternatives=faster))
    assert cause.cause == "threads"
    assert cause.remedy == "--set threads=1"
    assert not cause.changes_algorithm
    assert "with 1 thread(s) it takes 0.40x the time" in " ".join(cause.evidence)
    assert verdict_of(causes_of(examined._replace(alternatives=faster))).cause == "threads", "not nothing-wrong"
    hardly = Alternatives(updates=[Way({"threads": 1}, 0.9, 1, True), Way({"engine": "torch"}, 0.1, 1, True)])
    assert cause_of(examined._replace(alternatives=hardly)).cause == "update-arithmetic"
