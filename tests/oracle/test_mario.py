"""Super Mario Bros on the real emulator: rewards by the formula, ends for the right reason, nothing left to chance."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from second_console import SecondConsole

from hotloop.envs import mario, nes
from hotloop.envs.check import check_env
from hotloop.envs.host import make_vector_env
from hotloop.envs.mario import Mario
from hotloop.envs.mario_pictures import GREY, GreyPicture
from hotloop.errors import SpecError

ID = "hotloop.envs.mario:hotloop/Mario-v0"
STAND, RUN, RUN_AND_JUMP, LEFT = 0, 3, 4, 6

# Of stage 1-1, found by trial and error: run (3) or run and jump (4), from the start to the flag.
TO_THE_FLAG = (
    "4443334444444344443344443344333333344444433334444444433333444444444433444444444443334444333333334444444433333444"
    "443333344444444444433443334444443334433334444433333333343333344444433334444334333334333333344444444433444444444"
    "433333333333344"
)

Make = Callable[..., Mario]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Mario] = []

    def one(**options: Any) -> Mario:
        made.append(Mario(**options))
        return made[-1]

    yield one
    for env in made:
        env.close()


def play(env: Mario, actions: list[int]) -> list[tuple[Any, ...]]:
    """Reset, then act until the actions or the episode end; copies of what was seen."""
    obs, info = env.reset(seed=0)
    trace: list[tuple[Any, ...]] = [(obs.copy(), 0.0, False, False, info)]
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(action)
        trace.append((obs.copy(), reward, terminated, truncated, info))
        if terminated or truncated:
            break
    return trace


def assert_same(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> None:
    assert len(one) == len(other)
    for (obs, *rest), (other_obs, *other_rest) in zip(one, other, strict=True):
        assert np.array_equal(obs, other_obs)
        assert rest == other_rest


def some_actions(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(12, size=count).tolist()


def test_gymnasium_finds_nothing_to_complain_of() -> None:
    env = gym.make(ID, skip=1)
    gymnasium_check(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.heavy
def test_our_own_checker_finds_it_sound() -> None:
    report = check_env(ID, {"skip": 1, "size": 84, "stack": 4})
    assert report.is_sound, report.findings
    assert {finding.level for finding in report.findings} == {"ok"}


def test_importing_and_making_it_is_silent_and_leaves_the_old_gym_alone() -> None:
    code = (
        "import sys; from hotloop.envs.mario import Mario; Mario().close();"
        "assert not {'gym', 'nes_py', 'gym_super_mario_bros'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_reward_of_walking_is_a_sixth_of_the_way_forward_and_a_twelfth_of_the_way_back(make: Make) -> None:
    trace = play(make(), [1] * 14 + [LEFT] * 14)
    xs = [info["x_pos"] for *_, info in trace]
    for before, after, (_, reward, terminated, truncated, _) in zip(xs, xs[1:], trace[1:], strict=False):
        dx = after - before
        assert reward == pytest.approx(dx / 6 if dx > 0 else dx / 12)
        assert not terminated
        assert not truncated
    assert xs[14] > xs[0] + 60
    assert xs[28] < xs[14] - 30
    assert all(type(value) is int for value in trace[-1][-1].values())


def test_standing_still_is_truncated_after_forty_steps(make: Make) -> None:
    trace = play(make(skip=2), [STAND] * 100)
    assert len(trace) - 1 == 40
    assert [(t[2], t[3]) for t in trace[-2:]] == [(False, False), (False, True)]
    assert sum(t[1] for t in trace) == 0.0


def test_forty_steps_count_from_the_last_new_largest_x(make: Make) -> None:
    trace = play(make(skip=2), [1] * 20 + [LEFT] * 10 + [STAND] * 100)
    xs = [info["x_pos"] for *_, info in trace]
    assert len(xs) - 1 == int(np.argmax(xs)) + 40
    assert trace[-1][3]


def test_running_into_the_first_goomba_terminates_and_costs_one(make: Make) -> None:
    env = make()
    trace = play(env, [RUN] * 100)
    _, reward, terminated, truncated, info = trace[-1]
    dx = info["x_pos"] - trace[-2][-1]["x_pos"]
    assert (terminated, truncated, info["flag"]) == (True, False, 0)
    assert len(trace) < 40
    assert reward == pytest.approx(dx / 6 - 1.0)
    assert env._ram[mario.STATE] == mario.DYING
    assert env._ram[mario.Y_PAGE] == 1  # he has not yet fallen off the screen
    with pytest.raises(ValueError, match=r"the episode has ended; call reset\(\)"):
        env.step(RUN)


@pytest.mark.parametrize(("world", "stage"), [(1, 3), (8, 4)], ids=["pit", "lava"])
def test_a_fall_terminates_at_once(make: Make, world: int, stage: int) -> None:
    env = make(world=world, stage=stage, skip=4)
    trace = play(env, [1] * 100)
    _, reward, terminated, _, info = trace[-1]
    assert terminated
    assert reward == pytest.approx((info["x_pos"] - trace[-2][-1]["x_pos"]) / 6 - 1.0)
    assert info["life"] == 2
    assert env._ram[mario.STATE] != mario.DEAD


def test_the_flag_terminates_and_gives_the_bonus(make: Make) -> None:
    trace = play(make(flag_bonus=7.5), [int(a) for a in TO_THE_FLAG])
    _, reward, terminated, truncated, info = trace[-1]
    dx = info["x_pos"] - trace[-2][-1]["x_pos"]
    assert len(trace) - 1 == len(TO_THE_FLAG)
    assert (terminated, truncated, info["flag"]) == (True, False, 1)
    assert reward == pytest.approx(dx / 6 + 7.5)
    assert all(t[-1]["flag"] == 0 for t in trace[:-1])


def test_winning_a_world_is_a_flag_too(make: Make) -> None:
    env = make()
    env.reset()
    env._ram[mario.MODE] = mario.WORLD_WON
    _, reward, terminated, _, info = env.step(STAND)
    assert (reward, terminated, info["flag"]) == (5.0, True, 1)


def test_a_jump_to_another_area_is_no_way_and_progress_starts_there(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(skip=2, patience=3)
    env.reset()
    walk = [45, 46, 900, 901, 80, 81, 80, 80, 80]  # into a pipe, and out of it at another place
    xs = iter(walk)
    monkeypatch.setattr(env, "_read_x", lambda: next(xs))
    steps = [env.step(STAND) for _ in walk]
    ways = [5 / 6, 1 / 6, 0, 1 / 6, 0, 1 / 6, -1 / 12, 0, 0]
    assert [reward for _, reward, *_ in steps] == pytest.approx(ways)
    assert [truncated for *_, truncated, _ in steps] == [False] * 8 + [True]


def test_the_same_actions_give_the_same_bits_whatever_came_before_and_whatever_the_seed(make: Make) -> None:
    env, actions = make(skip=3), some_actions(40, seed=1)
    first = play(env, actions)
    play(env, [RUN_AND_JUMP] * 10)
    assert_same(first, play(env, actions))
    assert_same(first, play(make(skip=3), actions))
    assert np.array_equal(env.reset(seed=1)[0], env.reset(seed=2)[0])


def test_consoles_in_one_process_do_not_know_each_other(make: Make) -> None:
    plans = [some_actions(20, seed) for seed in range(3)]
    alone = [play(make(skip=2), plan) for plan in plans]
    envs = [make(skip=2) for _ in plans]
    together: list[list[tuple[Any, ...]]] = [[(env.reset(seed=0)[0].copy(), 0.0, False, False, {})] for env in envs]
    for actions in zip(*plans, strict=True):
        for env, action, trace in zip(envs, actions, together, strict=True):
            trace.append(env.step(action))
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one[0][0], other[0][0])
        assert_same(one[1:], other[1:])


def test_up_to_noop_max_frames_of_waiting_follow_the_seed(make: Make) -> None:
    frames_played = 0x09  # where the game counts them
    env, waits = make(noop_max=10), []
    env.nes.restore()
    start = env._ram[frames_played]
    for seed in [*range(8), *range(8)]:
        env.reset(seed=seed)
        waits.append(env._ram[frames_played] - start)
    assert waits[:8] == waits[8:]
    assert 0 <= min(waits) < max(waits) <= 10


@pytest.mark.parametrize("size", [84, 128])
def test_the_stack_shifts_by_one_and_begins_with_one_picture_repeated(make: Make, size: int) -> None:
    env = make(skip=2, size=size, stack=4)
    trace = play(env, [RUN_AND_JUMP] * 25)
    first = trace[0][0]
    assert first.shape == (4, size, size)
    assert first.dtype == np.uint8
    assert (first == first[0]).all()
    assert first.std() > 10
    for (before, *_), (after, *_) in pairwise(trace):
        assert np.array_equal(after[:-1], before[1:])
        assert not np.array_equal(after[-1], before[-1])


@pytest.mark.parametrize("size", [84, 128, 240])
def test_a_picture_is_the_area_mean_of_the_grey_screen(make: Make, size: int) -> None:
    cv2 = pytest.importorskip("cv2")
    env = make(world=4, stage=1, size=size, render_mode="rgb_array")
    obs, _ = env.reset()
    for action in some_actions(6, seed=2):
        grey = cv2.cvtColor(env.render(), cv2.COLOR_RGB2GRAY)
        expected = cv2.resize(grey, (size, size), interpolation=cv2.INTER_AREA)
        assert np.abs(obs[-1].astype(int) - expected).max() <= 1
        obs, *_ = env.step(action)


def test_grey_is_right_for_every_colour() -> None:
    red, green, blue = (int(part) for part in nes.rgb_of(np.uint16(0b10000_100000_01111)))
    assert (red, green, blue) == (132, 130, 123)
    assert nes.rgb_of(np.array([0, 0xFFFF], np.uint16)).tolist() == [[0, 0, 0], [255, 255, 255]]
    for pixel in range(0, 1 << 16, 257):
        red, green, blue = (int(part) for part in nes.rgb_of(np.uint16(pixel)))
        assert GREY[pixel] == pytest.approx(0.299 * red + 0.587 * green + 0.114 * blue, abs=1e-3)


def test_white_is_white_however_small() -> None:
    assert (GreyPicture(84)(np.full((nes.HEIGHT, nes.WIDTH), 0xFFFF, np.uint16)) == 255).all()


def test_another_emulator_plays_the_same_game(make: Make) -> None:
    """`nes_py`, written by others: Mario's x and speed are the same in every frame from the start to the flag.

    Its frames end after the buttons are read and before they act, so what is done in one of ours is in its next.
    """
    env, other = make(), SecondConsole()
    env.reset()
    other.begin()
    ways: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
    for action in map(int, TO_THE_FLAG):
        for _ in range(6):
            env.nes.step_frame(env.buttons[action])
            other.step(env.buttons[action], frames=1)
            for way, ram in zip(ways, (env.nes.ram, other.ram), strict=True):
                way.append((int(ram[mario.X_PAGE]), int(ram[mario.X]), int(ram[0x57])))
    assert ways[0][:-1] == ways[1][1:]
    assert ways[0][-1][0] == 12, "the page of the flag"


def test_a_library_that_cannot_be_loaded_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cores").mkdir()
    (tmp_path / "cores" / "fceumm_libretro.so").write_bytes(b"not a library")
    monkeypatch.setattr(nes, "package_folder", lambda package: tmp_path)
    with pytest.raises(SpecError, match=r"the emulator cannot be loaded: .*TMPDIR may name a folder"):
        nes._fresh_copy()


@pytest.mark.parametrize(("world", "stage"), [(1, 2), (2, 2), (4, 4), (8, 3)])
def test_other_stages_begin_where_they_should(make: Make, world: int, stage: int) -> None:
    env = make(world=world, stage=stage)
    info = env.reset()[1]
    assert (env._ram[mario.WORLD] + 1, env._ram[mario.STAGE] + 1) == (world, stage)
    assert info["x_pos"] == 40
    assert env.step(1)[1] > 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"world": 9}, "world is 9, expected a whole number of 1 … 8"),
        ({"stage": True}, "stage is True, expected a whole number of 1 … 4"),
        ({"size": 300}, "size is 300, expected a whole number of 36 … 240"),
        ({"actions": "simpel"}, "unknown actions 'simpel'; did you mean 'simple'?"),
        ({"flag_bonus": float("nan")}, "flag_bonus is nan, expected a finite number"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        Mario(**options)
    assert str(refused.value) == complaint
    with pytest.raises(SpecError) as refused_by_us:
        make_vector_env(ID, 1, options)
    assert str(refused_by_us.value) == f"env.id {ID}: ValueError: {complaint}"


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nes, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"needs the package gym_super_mario_bros; pip install 'hotloop\[mario\]'$"):
        Mario()
    with pytest.raises(SpecError, match=r"needs the package stable_retro; pip install 'hotloop\[mario\]'$"):
        nes._fresh_copy()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({0: 0}, "is not a ROM"),
        ({4: 0}, "holds no program"),
        ({4: 64}, "but its header speaks of"),  # 64 * 16 KiB: more than a uint8 can say
        ({6: 0x41}, "needs mapper 4"),
        ({6: 4}, "has a trainer"),
        ({9: 1}, "is for PAL"),
    ],
)
def test_a_rom_the_emulator_would_crash_on_is_refused(tmp_path: Path, change: dict[int, int], complaint: str) -> None:
    rom = bytearray((nes.package_folder("gym_super_mario_bros") / "_roms" / "super-mario-bros.nes").read_bytes())
    for index, value in change.items():
        rom[index] = value
    (tmp_path / "game.nes").write_bytes(rom)
    with pytest.raises(ValueError, match=complaint):
        nes.Nes(tmp_path / "game.nes")


def test_closing_gives_the_memory_back_and_may_be_done_twice() -> None:
    rom = nes.package_folder("gym_super_mario_bros") / "_roms" / "super-mario-bros.nes"

    def open_and_close(count: int) -> int:
        for _ in range(count):
            console = nes.Nes(rom)
            console.step_frame(0)
            console.backup()
            console.close()
            console.close()
        with pytest.raises(ValueError, match="the console is closed"):
            console.step_frame(0)
        return int(psutil.Process().memory_info().rss)

    before = open_and_close(20)
    assert open_and_close(60) - before < 60 * nes.HEIGHT * nes.WIDTH  # a console has four bytes per pixel and more
