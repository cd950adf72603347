"""The benchmark of emulators: each runs bare, and a preset's envs and training stand beside the one it runs on."""

from multiprocessing import get_context

import pytest

from hotloop.bench import emulators
from hotloop.progress import Silent


@pytest.mark.parametrize("name", emulators.BARE)
def test_a_bare_emulator_runs_in_a_process_of_its_own(name: str) -> None:
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(emulators.frames_per_s, (name, 0.01)) > 60  # a real console's


def test_envs_and_training_stand_beside_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ROUNDS": 2, "SECONDS": 0.2, "WARM_SECONDS": 0.2}.items():
        monkeypatch.setattr(emulators, name, value)
    with get_context("spawn").Pool(1) as pool:
        alone, envs, training = emulators._preset("mario_tiles", pool, Silent())
    assert (alone.unit, alone.ratio) == ("env steps/s", None)
    for row in (envs, training):
        assert row.against == alone.case
        assert row.value > 0
        assert row.ratio is not None
