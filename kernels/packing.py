"""Eight 4-bit weights in one int32, and the two orders in which checkpoints put them there.

An int32 has eight slots of four bits; slot s holds bits 4s … 4s+3. An order says which of eight
consecutive weights stands in each slot. Weights 0 … 7 become

    LINEAR  slot s holds weight s                    0x76543210   (GPTQ; what our kernels read)
    AWQ     slots hold weights 0, 2, 4, 6, 1, 3, 5, 7   0x75316420

AWQ's order lets a kernel unpack two neighbours at once into the halves of a 32-bit register. Data
packed in one order and unpacked in the other load without an error and are garbage, and packing
then unpacking restores them in any order: only a known word tells the orders apart.

Source: Lin et al., "AWQ", MLSys 2024, and the layout of its published checkpoints (which pack along
the *out* dimension: unpack, transpose, pack again to read them here).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import require

PER_WORD = 8
LINEAR = (0, 1, 2, 3, 4, 5, 6, 7)
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
GROUP_SIZES = (32, 64, 128)
ZERO_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32)


def pack(values: Tensor, order: tuple[int, ...] = LINEAR) -> Tensor:
    """Integers 0 … 15 (…, n) into int32 words (…, n / 8) along the last dimension.

    Raises ValueError if n is not a multiple of 8 or a value does not fit four bits.
    """
    require(
        values.shape[-1] % PER_WORD == 0,
        f"pack: the last dimension is {values.shape[-1]}; pad it to a multiple of {PER_WORD}",
    )
    require(
        not values.is_floating_point() and bool(((values >= 0) & (values <= 15)).all()),
        "pack: give integers from 0 to 15; add the zero point before packing signed weights",
    )
    slots = values.unflatten(-1, (-1, PER_WORD))[..., list(order)].long()
    words = (slots << _shifts(values.device)).sum(-1)  # unsigned, in 64 bit
    return torch.where(words < 2**31, words, words - 2**32).int()


def unpack(words: Tensor, order: tuple[int, ...] = LINEAR) -> Tensor:
    """int32 words (…, n / 8) into their weights 0 … 15, (…, n) uint8. Undoes `pack`."""
    require(words.dtype == torch.int32, f"unpack: words are {words.dtype}; give int32")
    slots = (words.unsqueeze(-1).long() >> _shifts(words.device)) & 0xF
    weights = torch.empty_like(slots, dtype=torch.uint8)
    weights[..., list(order)] = slots.to(torch.uint8)
    return weights.flatten(-2)


@triton.jit
def sixteen_plus_nibbles(words):
    """Inside a kernel: int32 (n, w) in LINEAR order → fp32 (n, 8 w), each 16 + weight, exactly.

    A nibble put on top of the mantissa of 16.0 adds itself: no conversion instruction is needed.
    The joins cost nothing, they only name registers.
    """
    halves = tl.join(words, words >> 16)
    quarters = tl.join(halves, halves >> 8)
    nibbles = tl.join(quarters, quarters >> 4)
    bits = ((nibbles & 0xF) << 19) | 0x41800000  # the bits of 16.0
    shape: tl.constexpr = [words.shape[0], words.shape[1] * 8]
    return tl.reshape(bits.to(tl.float32, bitcast=True), shape)


def check_groups(
    op: str, packed: Tensor, scales: Tensor, zeros: Tensor, in_features: int, group_size: int
) -> int:
    """The number of groups of packed weights, ⌈in / group_size⌉: the last may be short.

    packed: (out, in / 8) int32; scales: (out, groups) of a float dtype, zeros: (out, groups) of an
    integer dtype. Raises ValueError, in the name of `op`, if they do not fit each other.
    """
    require(group_size in GROUP_SIZES, f"{op}: group_size is {group_size}; use 32, 64 or 128")
    require(
        packed.dtype == torch.int32 and packed.ndim == 2,
        f"{op}: packed is {packed.dtype} with {packed.ndim} dimensions; give int32 (out, in / 8)",
    )
    require(
        in_features == packed.shape[1] * PER_WORD,
        f"{op}: x has {in_features} features, packed holds {packed.shape[1]} words of {PER_WORD}; "
        f"pad both to a common multiple of {PER_WORD}",
    )
    groups = triton.cdiv(in_features, group_size)
    shape = (packed.shape[0], groups)
    require(
        scales.is_floating_point() and scales.shape == shape,
        f"{op}: scales are {scales.dtype} {tuple(scales.shape)}; give floats (out, groups) {shape}",
    )
    require(
        zeros.dtype in ZERO_DTYPES and zeros.shape == shape,
        f"{op}: zeros are {zeros.dtype} {tuple(zeros.shape)}; give integers (out, groups) {shape}",
    )
    return groups


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(PER_WORD, device=device) * 4
