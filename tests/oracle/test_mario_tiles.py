"""Tiles around Mario: a naive reading of the game's memory, and what everybody knows of stage 1-1."""

import numpy as np
import pytest
from test_mario import TO_THE_FLAG

import hotloop.envs.mario_tiles as tiles
from hotloop.envs.check import check_env
from hotloop.envs.mario import Mario

AREA = tiles.ROWS * tiles.COLUMNS


@pytest.fixture
def env():
    made = Mario(actions="right", observation="tiles")
    yield made
    made.close()


def naive(ram):
    """One number after the other, from the addresses that players of the game have written down."""

    def signed(address):
        return (int(ram[address]) + 128) % 256 - 128

    x = int(ram[0x6D]) * 256 + int(ram[0x86]) + 8
    y = (int(ram[0xB5]) - 1) * 256 + int(ram[0xCE]) + 16 - 32
    left = x // 16 - 4
    solid, things, speeds = ({} for _ in range(3))
    for row in range(13):
        for column in range(left, left + 16):
            tile = int(ram[0x500 + 208 * (column // 16 % 2) + 16 * row + column % 16])
            nothing = tile in (0, 0x24, 0x25, 0x26, 0x5F, 0x60, 0xC2, 0xC3, 0xC5) or column < 0
            solid[row, column] = 0.0 if nothing else 1.0
    for i in range(6):
        kind, condition = int(ram[0x16 + i]), int(ram[0x1E + i])
        flat = kind == 6 and condition & 4
        if not ram[0x0F + i] or flat or condition & 0x20 or kind in (0x2F, 0x30, 0x31, 0x32, 0x34, 0x35):
            continue
        column = (int(ram[0x6E + i]) * 256 + int(ram[0x87 + i]) + 8) // 16
        top = (int(ram[0xB6 + i]) - 1) * 256 + int(ram[0xCF + i]) - 32
        is_lift = 0x24 <= kind <= 0x2C
        row = top // 16 if is_lift else (top + 16) // 16
        for place in range(column, column + (1 if not is_lift else 2 if kind > 0x2A else 3)):
            if (row, place) in solid:
                if is_lift:
                    solid[row, place] = 1.0
                else:
                    things[row, place] = -1.0 if kind == 0x2E else 1.0
                if kind in (0, 1, 2, 3, 5, 6, 8, 0x0E, 0x12, 0x2E):
                    speeds[row, place] = max(-1.0, min(1.0, signed(0x58 + i) / 48))
    feet = [float(row == min(max(y // 16, -1), 13)) for row in range(-1, 14)]
    moves = [max(-1.0, min(1.0, signed(0x57) / 48)), max(-1.0, min(1.0, signed(0x9F) / 6))]
    is_so = [ram[0x1D] == 0, ram[0x756] > 0, ram[0x756] > 1, bool(ram[0x0A] & 0x80)]
    planes = [plane.get(key, 0.0) for plane in (solid, things, speeds) for key in solid]
    return [*planes, *feet, x % 16 / 16, y % 16 / 16, *moves, *map(float, is_so)]


def test_every_number_is_that_of_a_naive_reading():
    chance, found = np.random.default_rng(3), set()
    for _ in range(300):
        ram = chance.integers(256, size=2048, dtype=np.uint8)
        ram[0x500:0x6A0][chance.random(416) < 0.5] = chance.choice(tiles.NOT_SOLID)
        ram[0x6D] = page = chance.integers(14)
        ram[0x6E:0x74] = page + chance.integers(2, size=6)
        ram[0xB5:0xBC] = chance.choice([0, 1, 1, 1, 1, 2], size=7)
        ram[0x16:0x1C] = chance.choice([0, 6, *tiles.LIFTS, tiles.WANTED, *tiles.HARMLESS], size=6)
        ram[0x1E:0x24] = chance.choice([0, 0, 4, 0x20], size=6)
        ram[0x1D], ram[0x756] = chance.integers(4), chance.integers(3)
        seen = tiles.Tiles(ram).look()
        assert seen.tolist() == pytest.approx(naive(ram), abs=1e-6)
        found |= set(seen[AREA : 2 * AREA].tolist())
    assert found == {-1.0, 0.0, 1.0}, "all kinds of things were seen"


def test_the_stage_is_the_one_that_everybody_knows(env):
    """1-1: the first question block is the 17th tile, pipes stand at 28, 38, 46 and 57, pits are at 69 and 86."""
    solid, seen = {}, env.reset()[0]
    for action in map(int, TO_THE_FLAG):
        left = (env._ram[tiles.X_PAGE] * 256 + env._ram[tiles.X] + 8) // 16 - tiles.BEHIND
        for column in range(tiles.COLUMNS):
            if left + column >= 0:
                solid.setdefault(left + column, seen[:AREA].reshape(tiles.ROWS, tiles.COLUMNS)[:, column].copy())
        seen, *_ = env.step(action)
    heights = {column: int(rows[:11][::-1].cumprod().sum()) for column, rows in solid.items()}
    assert solid[16][7] == 1
    assert solid[16][8] == solid[15][7] == solid[17][7] == 0
    pipes = {28: 2, 29: 2, 38: 3, 39: 3, 46: 4, 47: 4, 57: 4, 58: 4}
    assert {column: height for column, height in heights.items() if column < 60 and height} == pipes
    pits = [column for column, rows in solid.items() if column < 130 and not rows[12]]
    assert sorted(pits) == [69, 70, 86, 87, 88]


def test_goombas_come_nearer_and_are_gone_when_trodden_on(env):
    seen, places = env.reset()[0], []
    for action in map(int, TO_THE_FLAG):
        things = seen[AREA : 2 * AREA].reshape(tiles.ROWS, tiles.COLUMNS)
        if things.any():
            row, column = (int(place[0]) for place in np.nonzero(things))
            speeds = seen[2 * AREA : 3 * AREA].reshape(tiles.ROWS, tiles.COLUMNS)
            assert speeds[row, column] < 0, "it walks to the left"
            places.append((row, column))
        elif places:
            break
        seen, *_ = env.step(action)
    assert {row for row, _ in places} == {10}
    assert [column for _, column in places] == sorted((column for _, column in places), reverse=True)


def test_speeds_are_those_of_the_screen(env):
    """Pixels a frame as they were walked: at full run Mario makes three, a goomba walks left at 10/16 of a pixel."""
    seen, xs, speeds, goombas = env.reset()[0], [], [], []
    for action in map(int, TO_THE_FLAG):
        seen, _, terminated, _, info = env.step(action)
        xs.append(info["x_pos"])
        speeds.append(float(seen[-6]))
        goombas += seen[2 * AREA : 3 * AREA][seen[AREA : 2 * AREA] > 0].tolist()
        if terminated:
            break
    walked = np.diff(xs) / env.skip / 3
    at_one_speed = np.array(speeds[:-1]) == np.array(speeds[1:])
    assert at_one_speed.sum() > 50
    assert max(speeds) == 1.0
    # A pixel in 18; now and then he is held up within a step.
    assert np.quantile(np.abs(walked - speeds[1:])[at_one_speed], 0.95) < 0.06
    assert min(goombas) == pytest.approx(-10 / 48, abs=1e-3)


def test_what_does_not_walk_has_no_speed():
    """Firebars keep their turn where others have their speed."""
    env, met = Mario(world=1, stage=4, observation="tiles", actions="right", patience=400), 0
    chance, seen = np.random.default_rng(0), env.reset()[0]
    for _ in range(400):
        seen, _, terminated, truncated, _ = env.step(int(chance.choice([3, 4])))
        kinds = {env._ram[tiles.KIND + i] for i in range(tiles.NUM_THINGS) if env._ram[tiles.ALIVE + i]}
        if kinds == {0x1D}:
            met += 1
            assert not seen[2 * AREA : 3 * AREA].any()
        if terminated or truncated:
            env.reset()
    env.close()
    assert met


def test_options_of_pictures_are_refused():
    with pytest.raises(ValueError, match="size and stack are those of pictures; observation is 'tiles'"):
        Mario(observation="tiles", stack=4)


def test_they_can_be_drawn(env):
    picture = tiles.drawn(env.reset()[0]).splitlines()
    assert picture[-2:] == ["." + "#" * 15] * 2, "he stands in the fourth tile: of the first column there is nothing"
    assert picture[10][tiles.BEHIND] == "M"


def test_checks_of_envs_find_nothing():
    report = check_env("hotloop.envs.mario:hotloop/Mario-v0", {"observation": "tiles"})
    assert report.is_sound, report.findings


def test_unknown_observations_are_refused():
    with pytest.raises(ValueError, match="unknown observation 'tile'; did you mean 'tiles'"):
        Mario(observation="tile")
