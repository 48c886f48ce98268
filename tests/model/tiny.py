"""Tiny random models, a plain ragged cache, and a decoder written with loops, for the tests."""

from __future__ import annotations

import cmath
import math
from dataclasses import replace

import torch
from torch import Tensor

from tracegen.model import Config, Model
from tracegen.model.decoder import Layer, Weights
from tracegen.model.tokenizer import Tokenizer

TINY = Config(
    name="tiny",
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    max_positions=32,
    rope_theta=100.0,
    rms_norm_eps=1e-5,
    tied_embeddings=False,
    eos_ids=(2,),
    bos_id=None,
)


def tiny_model(
    config: Config = TINY,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Model:
    """A random model without a tokenizer, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    cfg = config
    q_rows, kv_rows = cfg.num_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
    layers = [
        Layer(
            attention_norm=rand(cfg.hidden_size),
            qkv=rand(cfg.hidden_size, q_rows + 2 * kv_rows),
            attention_out=rand(q_rows, cfg.hidden_size),
            mlp_norm=rand(cfg.hidden_size),
            gate_up=rand(2, cfg.hidden_size, cfg.intermediate_size),
            down=rand(cfg.intermediate_size, cfg.hidden_size),
        )
        for _ in range(cfg.num_layers)
    ]
    embedding = rand(cfg.vocab_size, cfg.hidden_size)
    head = embedding.t() if cfg.tied_embeddings else rand(cfg.hidden_size, cfg.vocab_size)
    weights = Weights(embedding, layers, rand(cfg.hidden_size), head)
    no_tokenizer: Tokenizer = None  # type: ignore[assignment]
    return Model(config, weights, no_tokenizer, lambda: "")


def with_heads(heads: int, kv_heads: int) -> Config:
    return replace(TINY, num_heads=heads, num_kv_heads=kv_heads)


class RaggedCache:
    """Fixed room for each row, rows of any length.  Slots without a token are zero."""

    def __init__(self, config: Config, batch: int, room: int, dtype=torch.float64) -> None:
        shape = (config.num_layers, batch, config.num_kv_heads, room, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        self.lengths = [0] * batch

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = k.shape[2]
        for row, start in enumerate(self.lengths):
            self.keys[layer, row, :, start : start + new] = k[row]
            self.values[layer, row, :, start : start + new] = v[row]
        held = max(self.lengths) + new
        return self.keys[layer, :, :, :held], self.values[layer, :, :, :held]

    def advance(self, counts: list[int]) -> None:
        self.lengths = [held + new for held, new in zip(self.lengths, counts, strict=True)]


def naive_logits(model: Model, tokens: list[int]) -> list[list[float]]:
    """Logits after each token, one number at a time, from the formulas alone."""
    cfg, weights = model.config, model.weights
    half, group = cfg.head_dim // 2, cfg.num_heads // cfg.num_kv_heads
    keys: list[list[list[list[float]]]] = [[] for _ in range(cfg.num_layers)]
    values: list[list[list[list[float]]]] = [[] for _ in range(cfg.num_layers)]
    logits = []

    def norm(x: list[float], weight: Tensor) -> list[float]:
        scale = 1 / math.sqrt(sum(a * a for a in x) / len(x) + cfg.rms_norm_eps)
        return [a * scale * w for a, w in zip(x, weight.tolist(), strict=True)]

    def times(matrix: Tensor, x: list[float]) -> list[float]:
        return [sum(w * a for w, a in zip(row, x, strict=True)) for row in matrix.t().tolist()]

    def heads_of(flat: list[float], first: int, count: int) -> list[list[float]]:
        d = cfg.head_dim
        return [flat[(first + h) * d : (first + h + 1) * d] for h in range(count)]

    def turn(head: list[float], position: int) -> list[float]:
        z = [
            complex(head[i], head[i + half])
            * cmath.exp(1j * position / cfg.rope_theta ** (2 * i / cfg.head_dim))
            for i in range(half)
        ]
        return [c.real for c in z] + [c.imag for c in z]

    for position, token in enumerate(tokens):
        x: list[float] = weights.embedding[token].tolist()
        for index, layer in enumerate(weights.layers):
            flat = times(layer.qkv, norm(x, layer.attention_norm))
            h, kv = cfg.num_heads, cfg.num_kv_heads
            queries = [turn(q, position) for q in heads_of(flat, 0, h)]
            keys[index].append([turn(k, position) for k in heads_of(flat, h, kv)])
            values[index].append(heads_of(flat, h + kv, kv))
            mixed: list[float] = []
            for number, q in enumerate(queries):
                shared = number // group
                past_keys = [k[shared] for k in keys[index]]
                past_values = [v[shared] for v in values[index]]
                scores = [
                    math.exp(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)))
                    for k in past_keys
                ]
                mixed += [
                    sum(s * v[i] for s, v in zip(scores, past_values, strict=True)) / sum(scores)
                    for i in range(cfg.head_dim)
                ]
            x = [a + b for a, b in zip(x, times(layer.attention_out, mixed), strict=True)]
            gate, up = (times(w, norm(x, layer.mlp_norm)) for w in layer.gate_up)
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
            x = [a + b for a, b in zip(x, times(layer.down, inner), strict=True)]
        logits.append(times(weights.head, norm(x, weights.final_norm)))
    return logits
