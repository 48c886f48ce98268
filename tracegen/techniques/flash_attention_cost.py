"""What FlashAttention costs and saves: bytes, time, rounding, and tiles inside a GPU kernel.

The same attention by several methods: "naive" writes all scores to memory, "tiled" is the loop of
tracegen/techniques/flash_attention.py, "sdpa" is torch's own fused attention, "kernel" is the
Triton kernel of kernels/flash_attention.py.

| quantity                      | naive                | tiled                                  |
|-------------------------------|----------------------|----------------------------------------|
| numbers moved for N×N scores  | 4N² + 4Nd = Θ(Nd+N²) | 2Nd + 2Nd · N/block_q = Θ(N²d²/M)      |
| FLOPs of both products        | 4N²d                 | 4N²d, causal about half of it          |

d is head_dim, and M the on-chip memory in numbers: a tile of queries holds M/4d rows. Each key and
value is read once for each tile of queries, so twice the memory halves the bytes.

Sources: Dao et al., "FlashAttention", NeurIPS 2022, theorem 2 (d ≤ M ≤ Nd); Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

from tracegen.attention_inputs import random_qkv
from tracegen.events import Event, Scenario
from tracegen.model import Model
from tracegen.score_grid import Grid, block_sizes
from tracegen.techniques.flash_attention import flash_attention, naive_attention


@dataclass(frozen=True, slots=True)
class Counted(Event):
    """What one head costs by formula; `phase` is what the pass writes. `on_chip_bytes` and `block`
    (of queries) are 0 where nothing is tiled."""

    method: str
    phase: str
    queries: int
    head_dim: int
    element_bytes: int
    on_chip_bytes: int
    block: int
    flops: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """Random inputs are in memory; what follows is timed without them."""

    dtype: str


@dataclass(frozen=True, slots=True)
class Timed(Event):
    """One call of one method. Its bytes are None where the tiles are not ours to know."""

    method: str
    queries: int
    keys: int
    heads: int
    head_dim: int
    element_bytes: int
    flops: int
    bytes_read: int | None
    bytes_written: int | None


@dataclass(frozen=True, slots=True)
class Rounded(Event):
    """Largest error of an output against float64; `spread` is the scores' standard deviation."""

    method: str
    dtype: str
    spread: float
    max_error: float


@dataclass(frozen=True, slots=True)
class KernelTile(Event):
    """One program of the Triton kernel: a tile of queries over its tiles of keys. `maxima` and
    `totals` are of its last row after each. Natively on NVIDIA also the multiprocessor it ran on,
    and when by the GPU's own timer, since the first program began."""

    path: str
    head: int
    row_tile: int
    block_q: int
    block_k: int
    maxima: tuple[float, ...]
    totals: tuple[float, ...]
    multiprocessor_measured: int | None
    started_ns: int | None
    ended_ns: int | None


@dataclass(frozen=True, kw_only=True)
class Traffic(Scenario):
    """Bytes of naive and tiled attention, unmasked, for sizes of on-chip memory."""

    lengths: tuple[int, ...] = tuple(2**n for n in range(7, 14))
    on_chip_kib: tuple[int, ...] = (24, 48, 96, 192)
    head_dim: int = 64
    element_bytes: int = 2


@dataclass(frozen=True, kw_only=True)
class Times(Scenario):
    """Causal attention of the last `queries` tokens over `keys`, by every method there is here."""

    keys: int
    queries: int
    heads: int = 4
    head_dim: int = 64
    block: int = 128


@dataclass(frozen=True, kw_only=True)
class Rounding(Scenario):
    """Random causal attention in three dtypes, always on the CPU, against float64."""

    spreads: tuple[float, ...] = (1.0, 4.0, 16.0)
    tokens: int = 512
    head_dim: int = 64


@dataclass(frozen=True, kw_only=True)
class Kernel(Scenario):
    """The Triton kernel with its tile log; the interpreter gets the small input."""

    tokens: int = 4096
    heads: int = 16
    interpreted_tokens: int = 128
    interpreted_heads: int = 4
    interpreted_block: int = 16


SCENARIOS = [
    Traffic(name="traffic"),
    *(
        Times(name=f"times_{n}", preset="quick" if n <= 2048 else "full", keys=n, queries=n)
        for n in (128, 256, 512, 1024, 2048, 4096)
    ),
    *(Times(name=f"decode_{n}", keys=n, queries=1) for n in (1024, 4096)),
    Rounding(name="rounding"),
    Kernel(name="kernel"),
]


def run(s: Scenario, model: Model) -> Generator[Event, None, None]:
    """Run one scenario of any kind."""
    match s:
        case Traffic():
            yield from count(s)
        case Times():
            yield from clock(s, model.device)
        case Rounding():
            yield from compare(s)
        case Kernel():
            yield from look_inside(s)


def count(s: Traffic) -> Iterator[Counted]:
    """Bytes by formula: a test holds that real tiles count the same."""
    d, e = s.head_dim, s.element_bytes
    for n in s.lengths:
        for phase, c in Grid(n, n, n, n).naive_costs(d, e).items():
            yield Counted("naive", phase, n, d, e, 0, 0, c.flops, c.bytes_read, c.bytes_written)
        for kib in s.on_chip_kib:
            block_q, block_k = block_sizes(kib * 1024 // e, d)
            c = Grid(n, n, block_q, block_k).tiled_cost(d, e)
            yield Counted(
                "tiled",
                "output",
                n,
                d,
                e,
                kib * 1024,
                block_q,
                c.flops,
                c.bytes_read,
                c.bytes_written,
            )


def clock(s: Times, device: torch.device) -> Iterator[Event]:
    """Call every method once on the same input; what SDPA and the kernel move stays theirs."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    shape = (1, s.heads, s.queries, s.head_dim)
    q, k, v = random_qkv(shape, s.keys, seed=s.seed, dtype=dtype, device=device)
    yield Prepared(str(dtype).removeprefix("torch."))
    grid = Grid(s.queries, s.keys, s.block, s.block, causal=True)
    tiled = grid.tiled_cost(s.head_dim, q.element_size()) * s.heads
    naive = grid.naive_cost(s.head_dim, q.element_size()) * s.heads
    for method, call in methods(s, device).items():
        call(q, k, v)
        cost = naive if method == "naive" else tiled
        moved = (
            (cost.bytes_read, cost.bytes_written) if method in ("naive", "tiled") else (None, None)
        )
        yield Timed(
            method, s.queries, s.keys, s.heads, s.head_dim, q.element_size(), cost.flops, *moved
        )


def methods(
    s: Times, device: torch.device
) -> dict[str, Callable[[Tensor, Tensor, Tensor], object]]:
    """Ways to compute causal attention on a device, by name."""
    found: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
        "naive": lambda q, k, v: naive_attention(q, k, v, causal=True),
        "tiled": lambda q, k, v: flash_attention(
            q, k, v, block_q=s.block, block_k=s.block, causal=True
        ),
        # torch aligns its causal mask at the top left, and a single query may see all keys
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=s.queries > 1),
    }
    if device.type == "cuda":
        from kernels.flash_attention import flash_attention as kernel

        found["kernel"] = lambda q, k, v: kernel(q, k, v, causal=True)
    return found


def compare(s: Rounding) -> Iterator[Rounded]:
    """Errors of the two-pass softmax, and of the online one with its state in float32 or lower."""
    for spread in s.spreads:
        shape = (1, 1, s.tokens, s.head_dim)
        wide = random_qkv(shape, s.tokens, seed=s.seed, spread=spread)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            q, k, v = (x.to(dtype) for x in wide)
            exact = naive_attention(q.double(), k.double(), v.double(), causal=True)
            outputs = {
                "two-pass": naive_attention(q, k, v, causal=True),
                "online": flash_attention(q, k, v, causal=True)[0],
                "online, narrow state": flash_attention(q, k, v, causal=True, state_dtype=dtype)[0],
            }
            for method, out in outputs.items():
                error = float((out.double() - exact).abs().max())
                yield Rounded(method, str(dtype).removeprefix("torch."), spread, error)


def look_inside(s: Kernel) -> Iterator[KernelTile]:
    """Run the Triton kernel, with a program for each tile of queries, and read its log."""
    if find_spec("triton") is None:  # no release for this platform
        return
    from kernels.flash_attention import TileLog  # before triton: kernels picks the interpreter
    from kernels.flash_attention import flash_attention as kernel
    from kernels.launch import INTERPRETED, Config

    tokens, heads, block_q, block_k = s.tokens, s.heads, 128, 64
    dtype, device = torch.bfloat16, "cuda"
    if INTERPRETED:
        tokens, heads = s.interpreted_tokens, s.interpreted_heads
        block_q = block_k = s.interpreted_block
        dtype, device = torch.float32, "cpu"
    shape = (1, heads, tokens, 64)
    q, k, v = random_qkv(shape, tokens, seed=s.seed, dtype=dtype, device=device)
    tiles = {"BLOCK_M": block_q, "BLOCK_N": block_k, "PERSISTENT": False, "SPECIALIZE": False}
    log = TileLog.empty(q, k, Config(tiles, num_warps=4, num_stages=3))
    kernel(q, k, v, causal=True, log=log)

    maxima, totals = (x[0, ..., -1].cpu() for x in (log.running_max, log.running_sum))
    clocks: list[Tensor] = []
    if log.sm is not None and log.start_ns is not None and log.end_ns is not None:
        origin = log.start_ns.min()
        clocks = [log.sm[0].cpu(), (log.start_ns - origin)[0].cpu(), (log.end_ns - origin)[0].cpu()]
    for head in range(heads):
        for i in range(maxima.shape[1]):
            visited = ~maxima[head, i].isnan()
            ran: list[int | None] = [int(clock[head, i]) for clock in clocks]
            yield KernelTile(
                "interpreter" if INTERPRETED else "native",
                head,
                i,
                block_q,
                block_k,
                tuple(maxima[head, i, visited].tolist()),
                tuple(totals[head, i, visited].tolist()),
                *(ran or [None] * 3),
            )
