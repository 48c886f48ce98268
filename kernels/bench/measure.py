"""What a bench is: rows of medians, each beside its peers and the machine's ceilings.

    def rows(bench: Bench) -> Iterator[Row]:
        for n in bench.pick(full=(1024, 8192), dry=(32,)):
            x = …
            yield bench.row("rms_norm", f"{n} × 4096 bf16", ours=lambda: rms_norm(x, w),
                            peers={"torch": lambda: torch.rms_norm(…)}, nbytes=…, flops=…)

On a GPU a time is the median of `triton.testing.do_bench`, which flushes the L2 cache before every
call, as a decode step finds it. A dry bench runs everything once on tiny shapes, on any device, and
measures nothing: so tests can hold the benches themselves. Either way every peer's result must
agree with ours before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import triton
from torch import Tensor

T = TypeVar("T")
Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Row:
    """Medians of one op on one shape, in milliseconds; None where nothing was measured (dry)."""

    op: str
    shape: str
    ours_ms: float | None
    peers_ms: dict[str, float | None]
    nbytes: int
    flops: int
    aim: str = ""  # what we hope for, written down until it is measured
    unavailable: dict[str, str] = field(default_factory=dict)  # peers that refused, and why


@dataclass(frozen=True)
class Bench:
    """Where and how to measure."""

    device: torch.device
    dry: bool = False

    def pick(self, *, full: Sequence[T], dry: Sequence[T]) -> Sequence[T]:
        """Shapes for a real run, or tiny ones."""
        return dry if self.dry else full

    def row(
        self,
        op: str,
        shape: str,
        *,
        ours: Call,
        peers: dict[str, Call],
        nbytes: int,
        flops: int,
        aim: str = "",
        atol: float = 2e-2,
        rtol: float = 2e-2,
    ) -> Row:
        """Check that all agree, then time them. `nbytes` and `flops` are counted by formula.

        A peer that raises RuntimeError (a backend that this device or dtype does not have) is
        noted as unavailable. Raises AssertionError when one disagrees.
        """
        expected, unavailable = ours(), {}
        for name, peer in peers.items():
            try:
                result = peer()
            except RuntimeError as error:
                unavailable[name] = str(error).splitlines()[0]
                continue
            try:
                torch.testing.assert_close(result.float(), expected.float(), atol=atol, rtol=rtol)
            except AssertionError as error:
                raise AssertionError(f"{op} {shape}: {name} disagrees: {error}") from None
        timed = {name: self.time(peer) for name, peer in peers.items() if name not in unavailable}
        return Row(op, shape, self.time(ours), timed, nbytes, flops, aim, unavailable)

    def time(self, call: Call) -> float | None:
        """Median milliseconds with a cold L2 cache; None in a dry bench."""
        if self.dry:
            return None
        return float(triton.testing.do_bench(call, warmup=25, rep=100, return_mode="median"))
