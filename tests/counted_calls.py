"""Which methods are called while something goes on."""

from collections import Counter

import pytest


def counted(monkeypatch: pytest.MonkeyPatch, calls: Counter, stage: str, owner: object, name: str) -> None:
    """Counts calls of a method from now on."""
    own = getattr(owner, name)

    def called(*given, **named):
        calls[stage] += 1
        return own(*given, **named)

    monkeypatch.setattr(owner, name, called)
