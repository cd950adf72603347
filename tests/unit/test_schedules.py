import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hotloop.learning.schedules import value_at
from hotloop.spec import Schedule

pytestmark = pytest.mark.less_optimised

KNOWN_POINTS: dict[str, tuple[Any, dict[int, float]]] = {
    "constant": (0.3, {0: 0.3, 1: 0.3, 10**9: 0.3}),
    "linear": (
        {"kind": "linear", "start": 1.0, "end": 0.1, "steps": 90},
        {0: 1.0, 30: 0.7, 89: 0.11, 90: 0.1, 91: 0.1, 10**9: 0.1},
    ),
    "linear upwards": ({"kind": "linear", "start": 0.2, "end": 0.8, "steps": 60}, {0: 0.2, 30: 0.5, 60: 0.8, 99: 0.8}),
    "exponential": (
        {"kind": "exponential", "start": 1.0, "end": 0.2, "rate": 0.5, "every": 100},
        {0: 1.0, 50: 0.5**0.5, 100: 0.5, 200: 0.25, 233: 0.2, 10**6: 0.2},
    ),
    "exponential, every step": ({"kind": "exponential", "start": 2.0, "rate": 0.9}, {0: 2.0, 1: 1.8, 2: 1.62}),
    "step": (
        {"kind": "step", "start": 1.0, "end": 0.2, "rate": 0.5, "every": 100},
        {0: 1.0, 99: 1.0, 100: 0.5, 199: 0.5, 200: 0.25, 299: 0.25, 300: 0.2, 10**6: 0.2},
    ),
    "cosine": (
        {"kind": "cosine", "start": 1.0, "end": 0.2, "steps": 120},
        {0: 1.0, 40: 0.2 + 0.8 * 0.75, 60: 0.6, 80: 0.2 + 0.8 * 0.25, 120: 0.2, 121: 0.2, 10**9: 0.2},
    ),
    "periodic": (
        {"kind": "periodic", "start": 1.0, "end": 0.2, "steps": 400, "period": 100},
        # Top of each wave on the falling ceiling, floor half a period later, then the floor for good.
        {0: 1.0, 50: 0.2, 100: 0.8, 150: 0.2, 200: 0.6, 300: 0.4, 400: 0.2, 500: 0.2, 10**6: 0.2},
    ),
}


def fields_of(schedule: Any) -> dict[str, Any]:
    """As a spec would hold it: validated, with defaults."""
    return TypeAdapter(Schedule).validate_python(schedule).model_dump()


@pytest.mark.parametrize("name", KNOWN_POINTS)
@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_a_schedule_passes_through_its_known_points(name: str, xp: Any) -> None:
    schedule, points = KNOWN_POINTS[name]
    steps = xp.asarray(list(points), dtype=xp.float32)
    values = value_at(steps, xp=xp, **fields_of(schedule))
    assert values.shape == steps.shape
    np.testing.assert_allclose(values, list(points.values()), rtol=1e-5, atol=1e-6)


def test_every_kind_of_schedule_has_known_points() -> None:
    known = {fields_of(schedule)["kind"] for schedule, _ in KNOWN_POINTS.values()}
    assert known == {"constant", "linear", "exponential", "step", "cosine", "periodic"}


@given(step=st.integers(0, 2**24), name=st.sampled_from(sorted(KNOWN_POINTS)))
def test_numpy_and_jax_give_the_same_value_between_the_schedules_ends(step: int, name: str) -> None:
    fields = fields_of(KNOWN_POINTS[name][0])
    ours, theirs = (float(value_at(xp.asarray(float(step), dtype=xp.float32), xp=xp, **fields)) for xp in (np, jnp))
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    ends = [fields[name] for name in ("value", "start", "end") if name in fields]
    assert min(ends) - 1e-6 <= ours <= max(ends) + 1e-6


def test_a_wave_keeps_its_phase_after_many_periods() -> None:
    """In float32 the cosine of millions of turns would be noise."""
    fields = fields_of({"kind": "periodic", "start": 1.0, "end": 0.0, "steps": 2**30, "period": 128})
    tops = jnp.asarray([2**23, 2**23 + 128], dtype=jnp.float32)
    np.testing.assert_allclose(value_at(tops, xp=jnp, **fields), 1 - 2**23 / 2**30, rtol=1e-4)
    np.testing.assert_allclose(value_at(tops + 64, xp=jnp, **fields), 0.0, atol=1e-4)


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(KeyError):
        value_at(np.float32(0), xp=np, kind="wobbly")


def test_exponential_is_a_power_of_its_rate() -> None:
    fields = fields_of({"kind": "exponential", "start": 0.7, "rate": 0.99, "every": 10})
    for step in (1, 7, 10, 1234):
        value = value_at(np.float64(step), xp=np, **fields)
        assert value == pytest.approx(0.7 * math.pow(0.99, step / 10))
