"""Share of the bare emulators' speed that is left when an agent sees their pictures, and when it learns from them.

Three ways to use all cores, each by the settings of a preset, in turns: emulators that are only given frames, a process
for each core; the preset's envs, with what they make of a frame, and random actions; the preset's training.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.pool import Pool

import numpy as np

from hotloop.bench.measure import Result, Row, machine, paired_ratio
from hotloop.cores import usable_cores
from hotloop.envs.host import open_envs
from hotloop.progress import Reporter
from hotloop.spec.reading import load_spec
from hotloop.trainer_process import Orders, Trainer

ROUNDS, SECONDS, WARM_SECONDS = 7, 4.0, 10.0
FRAMES_AT_ONCE = 500
"""Mario goes back to where he began after so many, so that he plays."""
PLAYED = {"pong": "ale-py", "mario": "FCEUmm", "mario_tiles": "FCEUmm"}
"""Presets, and the emulator each of them runs on."""
PONG_SKIP = 4  # of ALE/Pong-v5, whose skip is no option of the spec
Emulate = Callable[[], None]


def run(reporter: Reporter) -> Result:
    """Emulators first, then each preset's envs and training beside its emulator."""
    rows: list[Row] = []
    with get_context("spawn").Pool(usable_cores()) as pool:
        rows += _emulators(pool, reporter)
        for preset in PLAYED:
            rows += _preset(preset, pool, reporter)
    cores = usable_cores()
    says = f"{ROUNDS} rounds of {SECONDS:g} s each, on {cores} cores; a process for each core runs a bare emulator"
    return Result("emulators", {**machine(), "turns": says}, rows)


# -- bare emulators ---------------------------------------------------------------------------------------


def frames_per_s(emulator: str, seconds: float) -> float:
    """Of one bare emulator on one core, given random buttons; nothing is looked at."""
    emulate = BARE[emulator]()
    emulate()
    frames, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        emulate()
        frames += FRAMES_AT_ONCE
    return frames / passed


def _ale() -> Emulate:
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    game = ale_py.ALEInterface()
    game.setFloat("repeat_action_probability", 0.0)
    rom = roms.get_rom_path("pong")
    assert rom  # comes with the package
    game.loadROM(rom)
    actions, random = game.getMinimalActionSet(), np.random.default_rng(0)

    def emulate() -> None:
        for choice in random.integers(len(actions), size=FRAMES_AT_ONCE):
            game.act(actions[choice])
            if game.game_over():
                game.reset_game()

    return emulate


def _fceumm() -> Emulate:
    from hotloop.envs.mario import Mario

    game, random = Mario(), np.random.default_rng(0)
    game.reset(seed=0)
    game.nes.backup()

    def emulate() -> None:
        game.nes.restore()
        for choice in random.integers(len(game.buttons), size=FRAMES_AT_ONCE):
            game.nes.step_frame(game.buttons[choice])

    return emulate


def _nes_py() -> Emulate:
    """The emulator that comes with the game's package, by its own library: at the title, where it does least."""
    from hotloop.envs.nes import package_folder

    rom = package_folder("gym_super_mario_bros") / "_roms" / "super-mario-bros.nes"
    library = ctypes.CDLL(str(next(package_folder("nes_py").glob("lib_nes_env*"))))
    library.Initialize.restype = ctypes.c_void_p
    console = ctypes.c_void_p(library.Initialize(ctypes.c_wchar_p(str(rom))))
    library.Reset(console)

    def emulate() -> None:
        for _ in range(FRAMES_AT_ONCE):
            library.Step(console)

    return emulate


BARE: dict[str, Callable[[], Emulate]] = {"ale-py": _ale, "FCEUmm": _fceumm, "nes_py": _nes_py}


def _all_cores(pool: Pool, emulator: str) -> float:
    """Frames a second of one emulator on each core, all at once."""
    return sum(pool.map(_timed, [emulator] * usable_cores(), chunksize=1))


def _timed(emulator: str) -> float:
    return frames_per_s(emulator, SECONDS)


def _emulators(pool: Pool, reporter: Reporter) -> list[Row]:
    speed: dict[str, list[float]] = {emulator: [] for emulator in BARE}
    for number in range(ROUNDS):
        for emulator in list(BARE) if number % 2 == 0 else list(BARE)[::-1]:
            speed[emulator].append(_all_cores(pool, emulator))
        reporter.show(number + 1, ROUNDS, {"rounds of": " | ".join(BARE)})
    rows = [Row(f"emulator/{name}", statistics.median(each), "frames/s") for name, each in speed.items()]
    fast = rows[list(BARE).index("FCEUmm")]
    fast.ratio, fast.spread = paired_ratio(speed["FCEUmm"], speed["nes_py"])
    fast.against = "emulator/nes_py"
    fast.note = "playing 1-1; nes_py shows the title, where it has least to do"
    return rows


# -- presets ----------------------------------------------------------------------------------------------


def _preset(preset: str, pool: Pool, reporter: Reporter) -> list[Row]:
    spec, emulator = load_spec(preset), PLAYED[preset]
    skip = int(str(spec.env.options.get("skip", PONG_SKIP)))
    trainer = Trainer(Orders({"evaluation.every": 0, "stop.return_at_least": None}, preset))
    alone, envs, training = f"{preset}/emulator alone", f"{preset}/envs", f"{preset}/training"
    speed: dict[str, list[float]] = {alone: [], envs: [], training: []}
    used: list[float] = []
    try:
        with reporter.busy(f"{preset}: warming up"), _stepped(preset) as step_envs:
            trainer.train(WARM_SECONDS)
            step_envs(1.0)
            for number in range(ROUNDS):
                speed[alone].append(_all_cores(pool, emulator) / skip)
                speed[envs].append(step_envs(SECONDS))
                figures = trainer.train(SECONDS)
                speed[training].append(figures["env_steps_per_s"])
                used.append(figures["cores"])
                reporter.show(number + 1, ROUNDS, {"rounds of": " | ".join(speed)})
    finally:
        trainer.close()
    rows = [Row(case, statistics.median(each), "env steps/s") for case, each in speed.items()]
    for row in rows[1:]:
        row.ratio, row.spread = paired_ratio(speed[row.case], speed[alone])
        row.against = alone
    rows[0].note = f"{emulator}, {skip} frames a step"
    updates = f"{spec.updates_per_step:g} gradient steps of {spec.replay.batch_size} samples an env step"
    rows[2].note = f"{updates}; {statistics.median(used):.2g} cores in use"
    return rows


@contextmanager
def _stepped(preset: str) -> Iterator[Callable[[float], float]]:
    """Env steps a second of the preset's envs by random actions, for so many seconds."""
    env = load_spec(preset).env
    envs = open_envs(env.id, env.num_envs, env.options, env.vectorization, env.info, env.observe)
    envs.reset(0)
    random = np.random.default_rng(0)

    def step(seconds: float) -> float:
        steps, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            step = envs.step(random.integers(envs.actions.size, size=env.num_envs))
            steps += int(np.count_nonzero(step.valid))
        return steps / passed

    try:
        yield step
    finally:
        envs.close()
