"""Paged decode attention with split keys (flash-decoding): one new query a sequence.

    out = softmax(scale · q Kᵀ) V,   K and V scattered over blocks of a pool that all share

A block table maps a sequence's token t to slot `t mod block_size` of block
`table[t // block_size]`. One query has no rows to spread over the chip, so the keys are spread:
each program walks one split of a sequence's keys with the online softmax, for up to 16 query heads
that read the same key/value head, and a second kernel merges the splits by their log-sum-exp:

    out = Σ_s 2^(lse_s − max) · out_s / Σ_s 2^(lse_s − max)

Bytes, with T = Σ lengths, h key/value heads, d = head_dim, e bytes a number:
gathering first moves 3 · 2 T h d e (pool in, copy out, copy in); here it is 2 T h d e, plus
4 (d + 1) bytes a query head and split out and in again. FLOPs: 4 T · heads · d either way.

Sources: Kwon et al., "PagedAttention", SOSP 2023, section 4.1; Dao et al., "Flash-Decoding", 2023.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor
from triton import Config

from kernels.launch import INTERPRETED, Case, Cases, architecture, require, tuned
from kernels.occupancy import LIMITS
from kernels.paged_attention_kernel import merge_splits_kernel, paged_attention_kernel

HEADS_A_PROGRAM = 16  # the fewest rows that a matrix instruction takes
MAX_SPLITS = 64
TOKENS_A_SPLIT = 256  # a shorter split costs more in launch and merge than it hides

CONFIGS = [
    Config({"BLOCK_TOKENS": tokens}, num_warps=4, num_stages=stages)
    for tokens in (128, 64, 32, 16)
    for stages in (5, 3)
]
MERGE = Config({}, num_warps=4)
SCRATCH_BYTES = 8192  # queries, scores and reductions


def padded(head_dim: int) -> int:
    """A length that a tile may have: a power of two, at least what a matrix instruction takes."""
    return max(16, triton.next_power_of_2(head_dim))


def in_flight_bytes(config: Config, arch: str, head_dim: int, itemsize: int) -> int:
    """Shared memory of the key and value tiles that a program loads ahead.

    The address of a tile is itself loaded (from the table), so a tile takes two stages of the
    pipeline on NVIDIA; on AMD the table's stage and the last one hold nothing in shared memory.
    """
    tiles = config.num_stages - 2 if arch.startswith("gfx") else (config.num_stages - 1) // 2
    token_bytes = 2 * padded(head_dim) * itemsize
    return int(tiles * config.kwargs["BLOCK_TOKENS"] * token_bytes)


def suitable(arch: str, head_dim: int, itemsize: int) -> list[Config]:
    """The three configurations that load most ahead while two programs fit a multiprocessor.

    fp32 products run outside the tensor cores, with their operands in registers: 16 tokens fit.
    What is too large even so gets the smallest, and the multiprocessor to itself.
    """
    budget = LIMITS.get(arch, LIMITS["sm_80"]).shared_bytes // 2 - SCRATCH_BYTES
    loads = {config: in_flight_bytes(config, arch, head_dim, itemsize) for config in CONFIGS}
    fits = [
        config
        for config in CONFIGS
        if loads[config] <= budget and (itemsize < 4 or config.kwargs["BLOCK_TOKENS"] == 16)
    ]
    return sorted(fits or CONFIGS[-1:], key=lambda config: (-loads[config], -config.num_stages))[:3]


def choose(arguments: dict[str, Any]) -> list[Config]:
    """The configurations for this call's head_dim, dtype and architecture."""
    pool = arguments["key_ptr"]
    return suitable(architecture(pool.device), pool.shape[-1], pool.element_size())


_launch = tuned(paged_attention_kernel, CONFIGS, ["HEAD_DIM", "GROUP", "BLOCK_SIZE"], choose)


def choose_splits(programs: int, max_tokens: int, processors: int) -> int:
    """How many parts to cut every sequence into, so that the chip is full.

    `programs` is what runs unsplit (sequences times key/value heads), `max_tokens` what the longest
    block table can hold (the lengths lie on the device, and reading them would wait for it). Aims
    at two programs a multiprocessor, with at least TOKENS_A_SPLIT tokens a split.
    """
    wanted = 2 * processors // max(programs, 1)
    return max(1, min(wanted, max_tokens // TOKENS_A_SPLIT, MAX_SPLITS))


def paged_attention(
    q: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    splits: int | None = None,
    config: Config | None = None,
) -> Tensor:
    """Attention of one query a sequence over the keys and values that its block table names.

    q: (batch, heads, head_dim); pools: (num_blocks, kv_heads, block_size, head_dim), any block_size
    (16 is usual), so that one head's block is one stretch of memory; block_tables: (batch,
    max_blocks) int32; lengths: (batch,) int32, at most max_blocks * block_size. Query head h reads
    key/value head h // (heads / kv_heads). Table entries past a length are never read, nor are
    slots: they may hold anything. A length of 0 gives 0. `scale` defaults to 1/√head_dim.

    Returns (batch, heads, head_dim) of q's dtype (fp16, bf16 or fp32). Raises ValueError for shapes
    or dtypes that do not belong together. Lengths and table entries that are read are trusted.
    """
    check(q, key_pool, value_pool, block_tables, lengths, splits)
    batch, heads, head_dim = q.shape
    _, kv_heads, block_size, _ = key_pool.shape
    out = torch.empty((batch, heads, head_dim), dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    group = heads // kv_heads
    tiles = kv_heads * triton.cdiv(group, HEADS_A_PROGRAM)
    if splits is None:
        splits = choose_splits(
            batch * tiles, block_tables.shape[1] * block_size, processors(q.device)
        )
    lse = torch.empty((batch, heads, splits), dtype=torch.float32, device=q.device)
    # One split needs no merge: it writes the result itself.
    partial = out if splits == 1 else lse.new_empty((*lse.shape, head_dim))
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    launch = _launch if config is None else paged_attention_kernel
    launch[(batch, tiles, splits)](
        q, key_pool, value_pool, block_tables, lengths, partial, lse, scale / math.log(2),
        *q.stride(), *key_pool.stride(), *value_pool.stride(), *block_tables.stride(),
        *lengths.stride(),
        HEAD_DIM=head_dim, GROUP=group, BLOCK_SIZE=block_size,
        BLOCK_HEADS=HEADS_A_PROGRAM, BLOCK_DIM=padded(head_dim),
        **({} if config is None else config.all_kwargs()),
    )  # fmt: skip
    if splits > 1:
        merge_splits_kernel[(batch * heads,)](
            partial, lse, out, splits,
            HEAD_DIM=head_dim, BLOCK_DIM=padded(head_dim),
            BLOCK_SPLITS=triton.next_power_of_2(splits), **MERGE.all_kwargs(),
        )  # fmt: skip
    return out


def processors(device: torch.device) -> int:
    """Multiprocessors that run programs side by side; the interpreter runs one at a time."""
    if INTERPRETED:
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def check(
    q: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    splits: int | None,
) -> None:
    """Raise ValueError, in one line, for arguments that do not belong together."""
    tensors = (q, key_pool, value_pool, block_tables, lengths)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    require(
        [len(shape) for shape in shapes] == [3, 4, 4, 2, 1]
        and shapes[1] == shapes[2]
        and shapes[0][2] == shapes[1][3]
        and shapes[0][0] == shapes[3][0] == shapes[4][0],
        f"q, key_pool, value_pool, block_tables and lengths are {shapes}: give (batch, heads, "
        "head_dim), two of (num_blocks, kv_heads, block_size, head_dim), (batch, max_blocks), "
        "(batch,)",
    )
    (_, heads, head_dim), (_, kv_heads, block_size, _) = q.shape, key_pool.shape
    require(1 <= head_dim <= 256, f"head_dim is {head_dim}: give 1 to 256")
    require(block_size >= 1, "the pool's blocks hold no token: give a block_size of at least 1")
    require(
        kv_heads >= 1 and heads % kv_heads == 0,
        f"{heads} query heads cannot share {kv_heads} key/value heads: give a multiple",
    )
    dtypes = [tensor.dtype for tensor in tensors]
    require(
        dtypes[0] in (torch.float16, torch.bfloat16, torch.float32)
        and dtypes == dtypes[:1] * 3 + [torch.int32] * 2,
        f"q, key_pool, value_pool, block_tables and lengths are {dtypes}: give one of float16, "
        "bfloat16, float32 for the first three, int32 for the others",
    )
    require(
        len({tensor.device for tensor in tensors}) == 1,
        "the tensors lie on different devices: move them to one",
    )
    require(
        splits is None or 1 <= splits <= MAX_SPLITS,
        f"splits is {splits}: give 1 to {MAX_SPLITS}, or None to let the shape decide",
    )


def cases(arch: str) -> Cases:
    """What `arch` gets: every configuration of a usual shape, the extremes, the merge."""
    for dtype, itemsize, head_dim, group, most in (
        ("bf16", 2, 128, 4, 3),
        ("bf16", 2, 256, 8, 1),
        ("fp32", 4, 128, 4, 1),
    ):
        pointers = dict.fromkeys(("q_ptr", "key_ptr", "value_ptr"), f"*{dtype}")
        pointers |= dict.fromkeys(("table_ptr", "length_ptr"), "*i32")
        pointers |= dict.fromkeys(("out_ptr", "lse_ptr"), "*fp32")
        strides = [n for n in paged_attention_kernel.arg_names if n.startswith("stride")]
        unit = [n for n in strides if n.endswith("_dim")] + ["stride_table_block", "stride_length"]
        shape = {"HEAD_DIM": head_dim, "GROUP": group, "BLOCK_SIZE": 16}
        constants = {"BLOCK_HEADS": HEADS_A_PROGRAM, "BLOCK_DIM": padded(head_dim)} | shape
        constants |= dict.fromkeys(unit, 1)
        kinds = pointers | {"scale_log2": "fp32"} | dict.fromkeys(constants, "constexpr")
        kinds["BLOCK_TOKENS"] = "constexpr"
        for config in suitable(arch, head_dim, itemsize)[:most]:
            tokens, stages = config.kwargs["BLOCK_TOKENS"], config.num_stages
            yield Case(
                op="paged_attention",
                variant=f"{dtype} head {head_dim}, {tokens} tokens, {stages} stages",
                kernel=paged_attention_kernel,
                signature={n: kinds.get(n, "i32") for n in paged_attention_kernel.arg_names},
                constants=constants,
                config=config,
                aligned=(*pointers, *(set(strides) - {*unit, "stride_table_batch"})),
                shape={name.lower(): size for name, size in shape.items()},
            )
    yield Case(
        op="paged_attention",
        variant="merge of 32 splits, bf16 head 128",
        kernel=merge_splits_kernel,
        signature={"partial_ptr": "*fp32", "lse_ptr": "*fp32", "out_ptr": "*bf16", "splits": "i32"}
        | dict.fromkeys(("HEAD_DIM", "BLOCK_DIM", "BLOCK_SPLITS"), "constexpr"),
        constants={"HEAD_DIM": 128, "BLOCK_DIM": 128, "BLOCK_SPLITS": 32},
        config=MERGE,
        aligned=("partial_ptr", "lse_ptr", "out_ptr"),
        shape={"head_dim": 128, "splits": 32},
    )
