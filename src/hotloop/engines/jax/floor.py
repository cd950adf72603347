"""The matrix products of a gradient step by themselves: found in the program of the update, run in loops of their own.

A product that is called by itself measures the call, and one whose inputs never change is taken out of a loop by the
compiler. So each runs in a loop on the device, and a number of its result becomes one of its inputs for the next time;
what such a loop takes around a product of two numbers is taken off.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from hotloop.engines.jax.engine import LearnerState
from hotloop.engines.jax.host import JaxOnHost
from hotloop.engines.products import Products, seconds_for_each, seconds_of, taps
from hotloop.engines.protocol import Lesson

FILLED_WITH = 0.01


class Found(NamedTuple):
    """A product of the program, and how often it is done there."""

    equation: Any
    times: int


def seconds_of_products(engine: JaxOnHost, lesson: Lesson[LearnerState]) -> Products:
    """Those of one gradient step; of the lesson only shapes count."""
    found = products_of(engine, lesson)
    steps = jax.tree.leaves(lesson.items_KB.a_tm1)[0].shape[0] * engine.engine.spec.replay.updates_per_batch
    around, each = _seconds(_of_two_numbers(), seconds_for_each(1)), seconds_for_each(len(found))
    seconds = sum(times * max(0.0, _seconds(equation, each) - around) for equation, times in found)
    flops = sum(times * flops_of(equation) for equation, times in found)
    return Products(sum(times for _, times in found) / steps, flops / steps, seconds / steps)


def products_of(engine: JaxOnHost, lesson: Lesson[LearnerState]) -> list[Found]:
    """The products of all gradient steps of a lesson; those of one shape are one, found several times."""

    def update(state: Any, items_KB: Any, rate: Any, weight_KB: Any, draws: Any) -> Any:
        return engine.engine.update(state, items_KB, rate, weight_KB, draws_K=draws)

    given = (lesson.state, lesson.items_KB, jnp.float32(lesson.learning_rate), lesson.weight_KB, lesson.draws)
    found: dict[str, Found] = {}
    for equation, times in _within(jax.make_jaxpr(update)(*given).jaxpr):
        key = f"{equation.primitive} {[var.aval for var in equation.invars]} {equation.params}"
        found[key] = Found(equation, times + (found[key].times if key in found else 0))
    return list(found.values())


def _within(program: Any) -> Iterator[Found]:
    """The products of a program and of those within it."""
    for equation in program.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "conv_general_dilated" or (name == "dot_general" and _is_of_matrices(equation)):
            yield Found(equation, 1)
        elif name == "cond":  # one branch is taken; the one with most to do is the one that learns
            branches = [list(_within(branch.jaxpr)) for branch in params["branches"]]
            yield from max(branches, key=lambda found: sum(times * flops_of(one) for one, times in found))
        else:
            again = params["length"] if name == "scan" else 1  # how often a `while` loops is not known: once
            for inner in (part for value in params.values() for part in _programs(value)):
                yield from (Found(one, again * times) for one, times in _within(inner))


def _programs(value: Any) -> list[Any]:
    """The programs that a parameter of an operation holds."""
    parts = value if isinstance(value, tuple | list) else (value,)
    closed = [part.jaxpr if isinstance(part, core.ClosedJaxpr) else part for part in parts]
    return [part for part in closed if isinstance(part, core.Jaxpr)]


def _is_of_matrices(equation: Any) -> bool:
    """Whether both sides have an axis of their own; else it is a sum along one, as that of a bias's gradient."""
    contracted, batch = equation.params["dimension_numbers"]
    sides = zip(equation.invars, contracted, batch, strict=True)
    return all(var.aval.ndim > len(summed) + len(shared) for var, summed, shared in sides)


def flops_of(equation: Any) -> int:
    """Multiplications and additions."""
    left, right = (var.aval.shape for var in equation.invars)
    out, params = equation.outvars[0].aval.shape, equation.params
    if equation.primitive.name == "dot_general":
        return 2 * prod(out) * prod(left[axis] for axis in params["dimension_numbers"][0][0])
    numbers, multiplied = params["dimension_numbers"], 1
    axes = (numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:])
    for i, (size, kernel, moved) in enumerate(zip(*axes, strict=True)):
        stride, before, apart, spread = (
            params[name][i] for name in ("window_strides", "padding", "rhs_dilation", "lhs_dilation")
        )
        multiplied *= taps(left[size], right[kernel], out[moved], stride, before[0], apart, spread)
    return 2 * multiplied * out[numbers.out_spec[0]] * out[numbers.out_spec[1]] * right[numbers.rhs_spec[1]]


def _seconds(equation: Any, seconds: float) -> float:
    """Of one such product, with what the loop takes."""
    shapes, result = [var.aval for var in equation.invars], equation.outvars[0].aval
    fed = min(range(len(shapes)), key=lambda side: shapes[side].size)

    def one(_: Any, carry: Any) -> Any:
        operands, _ = carry
        made = equation.primitive.bind(*operands, **equation.params)
        number = jnp.clip(made[(0,) * made.ndim], -1.0, 1.0).astype(shapes[fed].dtype)
        fed_to = operands[fed].at[(0,) * shapes[fed].ndim].set(number)
        return tuple(fed_to if side == fed else each for side, each in enumerate(operands)), made

    def many(operands: Any, made: Any, times: Any) -> Any:
        return jax.lax.fori_loop(0, times, one, (operands, made))

    compiled = jax.jit(many, donate_argnums=(0, 1))  # in place: a copy would take as long as some products do
    state = (
        tuple(jnp.full(each.shape, FILLED_WITH, each.dtype) for each in shapes),
        jnp.zeros(result.shape, result.dtype),
    )

    def run(times: int) -> None:
        nonlocal state
        state = jax.block_until_ready(compiled(*state, jnp.int32(times)))  # sync

    return seconds_of(run, seconds, on_processor=jax.default_backend() == "cpu")


def _of_two_numbers() -> Any:
    """The smallest product there is."""
    number = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    [equation] = (found.equation for found in _within(jax.make_jaxpr(jax.lax.dot)(number, number).jaxpr))
    return equation
