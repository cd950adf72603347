"""Runs with priorities and n-step returns on the device: interrupted, side by side, and from a damaged checkpoint."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hotloop_process import TINY, checkpoints, manifest

import hotloop as package
from hotloop.assembly import Assembly
from hotloop.errors import SpecError
from hotloop.members import seeds
from hotloop.runs import checkpoint

SEED, STEPS = 5, 1000
SPEC = {
    **TINY,
    "seed": SEED,
    "replay": {"capacity": 300, "start": 64, "batch_size": 16, "n_step": 3, "sampling": {"kind": "prioritized"}},
    "evaluation": {"every": 0},
}

Arrays = dict[str, np.ndarray]


def arrays_of(run: Path) -> Arrays:
    return checkpoint.load(run / "checkpoints" / f"{checkpoints(run)[-1]:012d}")[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was left alone; not to be changed."""
    return package.train(SPEC, out=tmp_path_factory.mktemp("whole") / "run", **{"stop.steps": STEPS}).path


@pytest.fixture(scope="module")
def session() -> Any:
    """A session to restore checkpoints in."""
    return Assembly(package.load_spec(SPEC)).session(seeds([SEED]))


@pytest.mark.parametrize("first", [pytest.param(40, marks=pytest.mark.heavy), 452])
def test_an_interrupted_run_ends_in_the_same_bits(whole: Path, tmp_path: Path, first: int) -> None:
    """Interrupted before the learning start, and amid a period after the ring has wrapped around."""
    part = package.train(SPEC, out=tmp_path / "parts", **{"stop.steps": first})
    assert part.env_steps == first
    package.resume(part, steps=STEPS)
    seen, expected = manifest(tmp_path / "parts"), manifest(whole)
    assert seen["digests"] == expected["digests"]
    assert {"actor", "replay", "learner"} <= set(expected["digests"])
    leaves = arrays_of(whole)["replay/priorities/sums/0"]
    assert np.unique(leaves).size > 100, "the run did learn which rows surprise it"


@pytest.mark.heavy
def test_each_of_two_seeds_is_the_run_it_would_be_alone(whole: Path, tmp_path: Path) -> None:
    together = package.train(SPEC, out=tmp_path / "two", seeds=2, **{"stop.steps": STEPS})
    alone = package.train(SPEC, out=tmp_path / "alone", **{"stop.steps": STEPS, "seed": SEED + 1})
    arrays = arrays_of(together.path)
    for index, run in enumerate((whole, alone.path)):
        expected = arrays_of(run)
        assert set(arrays) == set(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(arrays[name][index], array, err_msg=name)
    assert (arrays["replay/priorities/sums/0"][0] != arrays["replay/priorities/sums/0"][1]).any()

    arrays["replay/priorities/sums/0"][1, 2, 3] = np.nan
    both = Assembly(package.load_spec({**SPEC, "seeds": 2})).session(seeds([SEED, SEED + 1]))
    with pytest.raises(ValueError, match="not all finite"):
        both.restore(arrays)


def _set(name: str, at: Any, value: float) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][at] = value

    return change


def _without(name: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.__delitem__(name)


def _consistent(at: Any, value: float) -> Callable[[Arrays], None]:
    """A leaf is changed, and the sums above it fit."""

    def change(arrays: Arrays) -> None:
        _set("replay/priorities/sums/0", at, value)(arrays)
        for level in (1, 2):
            below, above = (
                arrays[f"replay/priorities/sums/{level - 1}"],
                np.zeros_like(arrays[f"replay/priorities/sums/{level}"]),
            )
            above.reshape(-1)[: len(below)] = below.sum(axis=-1)
            arrays[f"replay/priorities/sums/{level}"] = above

    return change


DAMAGE: dict[str, tuple[Callable[[Arrays], None], str]] = {
    "NaN": (_consistent((4, 4), np.nan), "not all finite and positive"),
    "negative": (_consistent((4, 4), -0.1), "not all finite and positive"),
    "zero": (_consistent((4, 4), 0.0), "not those of its 300 transitions"),
    "beyond the ring": (_consistent((18, 12), 0.5), "not those of its 300 transitions"),
    "rows fewer than priorities": (_set("replay/ring/size", (), 296), "not those of its 296 transitions"),
    "largest": (_set("replay/priorities/largest", (), np.inf), "not all finite and positive"),
    "sums": (_set("replay/priorities/sums/1", (0, 4), 1e6), "sums of priorities do not fit"),
    "sums of nothing": (_set("replay/priorities/sums/2", (0, 9), 1e6), "sums of priorities do not fit"),
    "a level too few": (_without("replay/priorities/sums/2"), "replay/priorities/sums/2"),
    "another capacity": (
        lambda arrays: arrays.update({"replay/priorities/sums/0": arrays["replay/priorities/sums/0"][:-1]}),
        "replay/priorities/sums/0",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_broken_priorities_are_refused(whole: Path, session: Any, what: str) -> None:
    arrays = arrays_of(whole)
    assert session.restore(arrays) == []
    damage, message = DAMAGE[what]
    damage(arrays)
    with pytest.raises(ValueError, match=message) as refused:
        session.restore(arrays)
    assert "\n" not in str(refused.value)


def test_a_resume_from_broken_priorities_is_refused_in_one_line(whole: Path, tmp_path: Path) -> None:
    """The file itself is whole: what is wrong are its numbers."""
    run = shutil.copytree(whole, tmp_path / "run")
    folder = run / "checkpoints" / f"{STEPS:012d}"
    arrays, facts = checkpoint.load(folder)
    DAMAGE["NaN"][0](arrays)
    checkpoint.save(folder, arrays, {name: fact for name, fact in facts.items() if name not in ("bytes", "sha256")})
    with pytest.raises(SpecError, match="not all finite and positive") as refused:
        package.resume(run, steps=2 * STEPS)
    assert "\n" not in str(refused.value)
