"""How long the matrix products of a script's gradient step take on this machine by themselves.

The hook has written down one step's products; here they are run with NumPy, whose products are those of a vendor's
library as PyTorch's are. A convolution is timed as the product that it is of patches and kernels.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from threadpoolctl import threadpool_limits

from hotloop.engines.products import Products, seconds_for_each, seconds_of
from hotloop.plain import Json

Shape = tuple[int, int, int]
"""Rows, inner size, columns."""


def products_of(recorded: Iterable[Json]) -> Counter[Shape]:
    """Every product's shape, and how often it is there."""
    found: Counter[Shape] = Counter()
    for each in recorded:
        assert isinstance(each, list)
        found.update(_shapes(str(each[0]), each[1], each[2]))
    return found


def timed(products: Counter[Shape], threads: int = 1) -> Products:
    """By themselves, one after the other, on so many threads."""
    with threadpool_limits(threads):
        seconds = _seconds(products)
    flops = sum(2.0 * rows * inner * columns * times for (rows, inner, columns), times in products.items())
    return Products(float(sum(products.values())), flops, seconds)


def _seconds(products: Counter[Shape]) -> float:
    seconds = 0.0
    each_may_take = seconds_for_each(len(products))
    random = np.random.default_rng(0)
    for (rows, inner, columns), times in products.items():
        left = random.standard_normal((rows, inner), np.float32)
        right = random.standard_normal((inner, columns), np.float32)
        out = np.empty((rows, columns), np.float32)

        def run(number: int, a: np.ndarray = left, b: np.ndarray = right, to: np.ndarray = out) -> None:
            for _ in range(number):
                np.matmul(a, b, out=to)

        seconds += times * seconds_of(run, each_may_take, on_processor=False)
    return seconds


def _shapes(name: str, shapes: Json, more: Json) -> Iterator[Shape]:
    assert isinstance(shapes, list)
    assert isinstance(more, list)
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        left, right = shapes[-2:]
        assert isinstance(left, list)
        assert isinstance(right, list)
        rows, inner, columns = int(left[-2]), int(left[-1]), int(right[-1])
        yield from [(rows, inner, columns)] * (int(left[0]) if len(left) == 3 else 1)
    elif name == "convolution":
        yield _patches(shapes[0], shapes[1], more[0], more[1])
    elif name == "convolution_backward":  # the gradient, what went in, the kernels: two products of the forward's size
        gradient, given, kernels = shapes[:3]
        assert isinstance(gradient, list)
        places = _size(gradient) // int(gradient[1])
        one = (places, _size(kernels) // int(kernels[0]), int(kernels[0]))
        del given
        yield from [one, one]


def _patches(given: Json, kernels: Json, stride: Json, padding: Json) -> Shape:
    """Rows are places of all images, the inner size is a patch, columns are channels."""
    assert isinstance(given, list)
    assert isinstance(kernels, list)
    assert isinstance(stride, list)
    assert isinstance(padding, list)
    places = int(given[0])
    for axis in range(len(kernels) - 2):
        size, kernel = int(given[axis + 2]), int(kernels[axis + 2])
        places *= (size + 2 * int(padding[axis]) - kernel) // int(stride[axis]) + 1
    return places, _size(kernels) // int(kernels[0]), int(kernels[0])


def _size(shape: Json) -> int:
    assert isinstance(shape, list)
    size = 1
    for each in shape:
        size *= int(each)
    return size
