"""What a check of an env found, and how long it looks."""

from typing import NamedTuple

STEPS = 500
SECONDS = 0.5
VECTOR = 16


class Finding(NamedTuple):
    """`level` is ok, note (works, but know it) or wrong (training on it would fail or learn nonsense)."""

    level: str
    text: str


class Report(NamedTuple):
    """All findings, and microseconds per step of one env alone and of one among sixteen."""

    findings: list[Finding]
    us_per_step: float | None
    us_per_step_of_16: float | None

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong with it."""
        return all(finding.level != "wrong" for finding in self.findings)
