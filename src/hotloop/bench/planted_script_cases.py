"""Which planted scripts there are, what is wrong with each, and how its twin is run that has been put right."""

from dataclasses import dataclass
from pathlib import Path

from hotloop.bench.planted import Half

SCRIPTS = Path(__file__).with_name("planted_scripts")
MARK = "# planted: "


@dataclass(frozen=True)
class ScriptCase:
    """One slow script."""

    script: str
    plant: str
    half: Half
    truth: frozenset[str]
    slow: tuple[str, ...] = ()
    """Arguments, beside `--plant`."""
    fixed: tuple[str, ...] = ()
    """Of the twin."""
    counts: str = "env_steps"
    """What its speed is counted in."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.script}: {' '.join([self.plant, *self.slow])}"

    def command(self, python: str, *, is_fixed: bool) -> list[str]:
        """That runs it, or its twin."""
        plant = [] if is_fixed or self.plant == "nothing" else ["--plant", self.plant]
        return [python, str(SCRIPTS / f"{self.script}.py"), *plant, *(self.fixed if is_fixed else self.slow)]

    def lines(self) -> set[int]:
        """Those that are marked as the ones that are slow; nothing where no line is."""
        text = (SCRIPTS / f"{self.script}.py").read_text(encoding="utf-8").splitlines()
        return {
            number
            for number, line in enumerate(text, 1)
            if MARK in line and self.truth & set(line.partition(MARK)[2].split())
        }


def _case(
    script: str, plant: str, half: Half, truth: str = "", slow: str = "", fixed: str = "", **more: str
) -> ScriptCase:
    return ScriptCase(
        script, plant, half, frozenset((truth or plant).split()), tuple(slow.split()), tuple(fixed.split()), **more
    )


SCRIPT_CASES: tuple[ScriptCase, ...] = (
    _case("flat", "env-step", "asked"),
    _case("flat", "rendering", "set"),
    _case("flat", "conversion", "asked"),
    _case("flat", "host-sync", "set"),
    _case("flat", "target-copy", "asked"),
    _case("flat", "logging", "set"),
    _case("flat", "evaluation", "asked", counts="gradient_steps"),
    _case("flat", "checkpointing", "set"),
    _case("flat", "update-count", "set", fixed="--plant update-count-half"),
    _case(
        "flat",
        "update-arithmetic",
        "asked",
        "update-arithmetic nothing-wrong",
        fixed="--plant update-arithmetic-half",
    ),
    _case("classes", "replay-sample", "asked", slow="--batch-size 512", fixed="--batch-size 512"),
    _case("classes", "replay-insert", "set"),
    _case("classes", "priorities", "asked", slow="--batch-size 512", fixed="--batch-size 512"),
    _case("classes", "debug-work", "set"),
    _case("classes", "memory", "asked"),
    _case(
        "classes",
        "nothing",
        "set",
        "threads",
        slow="--threads 16 --width 256 --batch-size 256",
        fixed="--width 256 --batch-size 256",
    ),
    _case(
        "vector", "nothing", "asked", "env-one-at-a-time", slow="--rounds 20000", fixed="--rounds 20000 --vector async"
    ),
    _case("vector", "nothing", "set", "env-transport", slow="--vector async"),
    _case("vector", "act-one-at-a-time", "asked", slow="--num-envs 32", fixed="--num-envs 32"),
    _case("sb3", "env-step", "set"),
    _case("sb3", "evaluation", "asked", counts="gradient_steps"),
    _case("sb3", "logging", "asked"),
    _case("sb3", "checkpointing", "set"),
    _case(
        "sb3",
        "nothing",
        "asked",
        "update-count",
        slow="--gradient-steps 4 --train-freq 1",
        fixed="--gradient-steps 2 --train-freq 1",
    ),
    _case("actors", "pickling", "set", counts="gradient_steps"),
    _case("actors", "waiting", "asked", slow="--start spawn", fixed="--start spawn", counts="gradient_steps"),
)
