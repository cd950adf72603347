"""Standard output for answers alone: what envs and packages print goes to standard error."""

import os
from typing import TextIO


def answers_apart() -> TextIO:
    """Where answers go from now on; all else that this process and its children print does not go there."""
    answers = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115  # for as long as the process
    os.dup2(2, 1)
    return answers
