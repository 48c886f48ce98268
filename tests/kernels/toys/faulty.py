"""Ships what must not be shipped: a case that spills, one too large, one that no compiler takes."""

from dataclasses import replace

from tests.kernels.toys import tiles


def cases(arch):
    for case in (
        *tiles.sweep(arch),
        tiles.dot_case("large", block=128, block_k=128, stages=5),
        tiles.dot_case("odd", block=100, block_k=32),
    ):
        yield replace(case, op="faulty", shipped=True)
