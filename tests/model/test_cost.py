"""The cost formula against torch's FLOP counter on the real decoder, and against its weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.model.tiny import TINY, RaggedCache, tiny_model
from tracegen.model.cost import forward_cost


def counted(config, new: int, held: int, last_only: bool) -> int:
    """FLOPs that torch counts; its attention formula takes every (query, key) pair for visible."""
    model = tiny_model(config, dtype=torch.float32)
    cache = RaggedCache(config, 1, held + new, dtype=torch.float32)
    if held:
        model.forward(torch.zeros(1, held, dtype=torch.int64), cache)
    # Only attention made of plain products is counted on the CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.forward(torch.zeros(1, new, dtype=torch.int64), cache, last_only=last_only)
    return counter.get_total_flops()


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize(("new", "held"), [(1, 0), (1, 7), (6, 0), (5, 4)])
def test_flops_agree_with_torch(new, held, last_only):
    ours = forward_cost(TINY, [new], [held], 4, last_only).flops
    hidden_pairs = new * (new - 1) // 2
    a_pair = 4 * TINY.num_heads * TINY.head_dim * TINY.num_layers
    assert counted(TINY, new, held, last_only) == ours + a_pair * hidden_pairs


@pytest.mark.parametrize("tied", [False, True])
def test_weight_bytes_are_those_of_the_tensors(tied):
    config = replace(TINY, tied_embeddings=tied)
    weights = tiny_model(config).weights
    layers = sum(
        getattr(layer, name).numel() for layer in weights.layers for name in layer.__slots__
    )
    whole = layers + weights.final_norm.numel() + weights.head.numel()
    gathered = 0 if tied else 5 * config.hidden_size
    cost = forward_cost(config, [2, 3], [0, 0], 2, True)
    assert cost.weight_bytes == 2 * (whole + gathered)


def test_rows_share_weights_and_keep_their_own_keys_and_values():
    one, two = (forward_cost(TINY, [1] * rows, [9] * rows, 4, True) for rows in (1, 2))
    embedding_row = 4 * TINY.hidden_size
    assert two.weight_bytes == one.weight_bytes + embedding_row
    assert two.flops == 2 * one.flops
    slot = 4 * 2 * TINY.num_layers * TINY.num_kv_heads * TINY.head_dim
    assert (one.kv_read_bytes, one.kv_written_bytes) == (10 * slot, slot)
    assert (two.kv_read_bytes, two.kv_written_bytes) == (20 * slot, 2 * slot)


def test_default_model_by_hand(default_model):
    """One decode step of SmolLM2-135M: twice its matrices, 23,040 bytes of float16 KV a token."""
    cost = forward_cost(default_model.config, [1], [0], 2, True)
    matrices = 30 * (576 * 960 + 576 * 576 + 3 * 576 * 1536) + 576 * 49152
    assert cost.flops == 2 * matrices + 4 * 576 * 30
    assert cost.weight_bytes == 2 * (matrices + 61 * 576)
    assert cost.kv_written_bytes == 30 * 2 * 3 * 64 * 2 == 23_040
