"""Products of a script's gradient step are those counted by hand."""

from collections import Counter

from hotloop.doctor.scripts.arithmetic import products_of, timed


def test_a_small_network_by_hand():
    recorded = [
        ["addmm", [[64], [32, 4], [4, 64]], []],
        ["mm", [[32, 2], [2, 64]], []],
        ["bmm", [[5, 2, 3], [5, 3, 7]], []],
    ]
    assert products_of(recorded) == Counter({(32, 4, 64): 1, (32, 2, 64): 1, (2, 3, 7): 5})


def test_a_convolution_is_a_product_of_patches_and_kernels():
    forward = ["convolution", [[8, 4, 84, 84], [32, 4, 8, 8], [32]], [[4, 4], [0, 0], [1, 1], False, [0, 0]]]
    backward = ["convolution_backward", [[8, 32, 20, 20], [8, 4, 84, 84], [32, 4, 8, 8]], [[32], [4, 4]]]
    assert products_of([forward]) == Counter({(8 * 20 * 20, 4 * 8 * 8, 32): 1})
    assert products_of([backward]) == Counter({(8 * 20 * 20, 4 * 8 * 8, 32): 2})


def test_they_are_timed():
    found = timed(Counter({(32, 16, 8): 2, (4, 4, 4): 1}))
    assert found.number == 3
    assert found.flops == 2 * 32 * 16 * 8 * 2 + 2 * 4 * 4 * 4
    assert 0 < found.seconds < 0.1
