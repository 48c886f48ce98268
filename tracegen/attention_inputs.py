"""Queries, keys and values to run attention on: a real model's, or random ones."""

from __future__ import annotations

import torch
from torch import Tensor

from tracegen.model import Model
from tracegen.model.decoder import rotary_tables, rotate
from tracegen.model.norm import RMSNorm


def first_layer(model: Model, ids: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """What the attention of the model's first layer gets for these tokens, positions rotated in.

    Returns q (1, heads, length, head_dim), k and v (1, kv_heads, length, head_dim).
    """
    config, layer = model.config, model.weights.layers[0]
    x = model.weights.embedding[torch.tensor(ids, device=model.device)]
    norm = RMSNorm(config.hidden_size, config.rms_norm_eps, model.device, model.dtype)
    qkv = norm(x, layer.attention_norm) @ layer.qkv
    heads = qkv.view(1, len(ids), -1, config.head_dim).transpose(1, 2)
    qk, v = heads.split((config.num_heads + config.num_kv_heads, config.num_kv_heads), 1)
    cos, sin = rotary_tables(config, len(ids)).to(model.device, model.dtype)
    q, k = rotate(qk, cos, sin).split((config.num_heads, config.num_kv_heads), 1)
    return q, k, v


def random_qkv(
    shape: tuple[int, int, int, int],
    keys: int,
    *,
    seed: int,
    spread: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor, Tensor]:
    """Normal q of `shape` (batch, heads, queries, head_dim), k and v alike with `keys`; the same
    for a seed on any device. Scores divided by √head_dim have the standard deviation `spread`."""
    generator = torch.Generator().manual_seed(seed)
    batch, heads, _, head_dim = shape
    sizes = shape, (batch, heads, keys, head_dim), (batch, heads, keys, head_dim)
    q, k, v = (torch.randn(size, generator=generator) for size in sizes)
    return (spread * q).to(device, dtype), k.to(device, dtype), v.to(device, dtype)
