"""A Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

For each layer, with x the residual stream (batch * new, hidden):

    x = x + attention(norm(x) · W_qkv) · W_o
    x = x + (silu(norm(x) · W_gate) * (norm(x) · W_up)) · W_down

Then logits = norm(x) · W_head.  Weights that read the same input lie in one matrix (query, key
and value; gate and up), so that a decode step, which is one pass over the weights, makes few calls.
Gate and up are a batch of two products: a CPU gives each to a core of its own.

Sources: Touvron et al., "LLaMA", 2023; Zhang and Sennrich, "RMSNorm", 2019; Su et al., "RoFormer",
2021; Ainslie et al., "GQA", 2023; Shazeer, "GLU Variants", 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from tracegen.errors import UserError
from tracegen.model.attention import Attend, Prepare, sdpa
from tracegen.model.cache import Cache
from tracegen.model.config import Config
from tracegen.model.norm import RMSNorm
from tracegen.model.tokenizer import Tokenizer


@dataclass(slots=True)
class Layer:
    """Weights of one layer, matrices as (inputs, outputs); a head is `head_dim` columns."""

    attention_norm: Tensor  # (hidden,)
    qkv: Tensor  # (hidden, (heads + 2 kv_heads) * head_dim): all queries, then keys, then values
    attention_out: Tensor  # (heads * head_dim, hidden)
    mlp_norm: Tensor  # (hidden,)
    gate_up: Tensor  # (2, hidden, intermediate): gate, then up
    down: Tensor  # (intermediate, hidden)


@dataclass(slots=True)
class Weights:
    """All weights.  With tied embeddings `head` is a view of `embedding`."""

    embedding: Tensor  # (vocab, hidden)
    layers: list[Layer]
    final_norm: Tensor  # (hidden,)
    head: Tensor  # (hidden, vocab)


class Model:
    """A decoder with its tokenizer.  Load one with `tracegen.model.load_model`."""

    def __init__(
        self,
        config: Config,
        weights: Weights,
        tokenizer: Tokenizer,
        digest: Callable[[], str],
        attention: Prepare = sdpa,
    ) -> None:
        self.config = config
        self.weights = weights
        self.tokenizer = tokenizer
        self.name = config.name
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self._digest = digest
        self._attention = attention
        self._norm = RMSNorm(config.hidden_size, config.rms_norm_eps, self.device, self.dtype)
        self._rotary = rotary_tables(config, min(config.max_positions, 1024)).to(
            self.device, self.dtype
        )

    @cached_property
    def sha256(self) -> str:
        """Hex sha256 of the weight file; of the sorted `digest  name` lines if it is sharded."""
        return self._digest()

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        *,
        lengths: list[int] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits of the next token after each of `tokens`.

        tokens: (batch, new) int64, rows padded at the right where `lengths`, each row's number of
        real tokens, says so.  With a cache, row b continues at position `cache.lengths[b]`.
        Returns float32 (batch, new, vocab), or (batch, 1, vocab) at each row's last real token
        with `last_only`.  Logits at padding mean nothing.  Clone them before editing in place:
        they are inference tensors.
        Raises UserError for no tokens, or for positions past the model's context.
        """
        batch, new = tokens.shape
        counts = [new] * batch if lengths is None else lengths
        starts = list(cache.lengths) if cache is not None else [0] * batch
        self._check(counts, starts, batch, new)
        cfg, weights, norm = self.config, self.weights, self._norm
        heads, kv_heads = cfg.num_heads, cfg.num_kv_heads
        tokens = tokens.to(self.device)
        cos, sin = self._rotary_at(starts, new)
        attend: Attend

        x = F.embedding(tokens.flatten(), weights.embedding)  # (batch * new, hidden)
        for index, layer in enumerate(weights.layers):
            qkv = torch.mm(norm(x, layer.attention_norm), layer.qkv).view(
                batch, new, -1, cfg.head_dim
            )
            qk, v = qkv.transpose(1, 2).split_with_sizes((heads + kv_heads, kv_heads), 1)
            q, k = rotate(qk, cos, sin).split_with_sizes((heads, kv_heads), 1)
            if cache is not None:
                k, v = cache.update(index, k, v)
            if index == 0:
                attend = self._attention(starts, new, k.shape[2], self.device)
            a = attend(q, k, v)
            if last_only and new > 1 and layer is weights.layers[-1]:
                last = [row * new + count - 1 for row, count in enumerate(counts)]
                x, a = x[last], a[last]  # no later layer needs the other tokens
            x = torch.addmm(x, a, layer.attention_out)
            gate, up = torch.bmm(norm(x, layer.mlp_norm).expand(2, -1, -1), layer.gate_up)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        if cache is not None:
            cache.advance(counts)
        return (
            torch.mm(norm(x, weights.final_norm), weights.head)
            .view(batch, -1, cfg.vocab_size)
            .float()
        )

    def _check(self, counts: list[int], starts: list[int], batch: int, new: int) -> None:
        if len(starts) != batch or len(counts) != batch:
            raise UserError(
                f"the pass has {batch} rows, its cache {len(starts)} and its lengths "
                f"{len(counts)}; give one of each per row"
            )
        if new == 0 or min(counts) < 1 or max(counts) > new:
            raise UserError(
                f"a row of tokens is empty or longer than the batch ({counts} real tokens in "
                f"rows of {new}); give at least one token per row"
            )
        end = max(start + count for start, count in zip(starts, counts, strict=True))
        if end > self.config.max_positions:
            raise UserError(
                f"{end} tokens exceed the context of {self.config.max_positions} tokens of "
                f"{self.name}; shorten the prompt or generate fewer tokens"
            )

    def _rotary_at(self, starts: list[int], new: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin, (new, head_dim), or (batch, 1, new, head_dim) where rows differ."""
        end = max(starts) + new
        if end > self._rotary.shape[1]:
            self._rotary = rotary_tables(self.config, 2 * end).to(self.device, self.dtype)
        if len(set(starts)) == 1:
            cos, sin = self._rotary[:, starts[0] : end]
        else:
            first = torch.tensor(starts, device=self.device)
            positions = first[:, None] + torch.arange(new, device=self.device)
            cos, sin = self._rotary[:, positions].unsqueeze(2)
        return cos, sin


def rotary_tables(config: Config, positions: int) -> Tensor:
    """cos and signed sin of every position's angles: (2, positions, head_dim), float64, CPU.

    Dimension i turns with i + head_dim/2 by `position / theta^(2i / head_dim)`; the sine of the
    first half is negated here, so that `rotate` needs no sign.
    """
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequency = config.rope_theta**-exponent
    if config.rope_factors is not None:
        frequency = frequency / torch.tensor(config.rope_factors, dtype=torch.float64)
    angle = torch.outer(torch.arange(positions, dtype=torch.float64), frequency)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x (batch, heads, new, head_dim), half-split form."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)
