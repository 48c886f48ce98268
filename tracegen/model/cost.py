"""What one pass through the decoder costs, counted by formula from its shapes."""

from __future__ import annotations

from dataclasses import dataclass

from tracegen.model.config import Config


@dataclass(frozen=True, slots=True)
class Cost:
    """Arithmetic and memory traffic of one pass.  Padding is not counted."""

    flops: int
    weight_bytes: int
    kv_read_bytes: int
    kv_written_bytes: int


def forward_cost(
    config: Config,
    new_tokens: list[int],
    held_tokens: list[int],
    element_bytes: int,
    last_only: bool,
) -> Cost:
    """Cost of `Model.forward` over rows with `new_tokens` real tokens after `held_tokens` cached.

    With n new and p held tokens in a row, d = hidden, D = head_dim, H and K query and key/value
    heads, f = intermediate, V = vocab, L layers, T the sum of n over rows, e bytes an element:

    - FLOPs of the matrices: 2·T·L·(d·(H + 2K)·D + H·D·d + 3·d·f), and 2·V·d for each token whose
      logits are computed: all T, or one a row with `last_only`.  Then the last layer's output and
      MLP matrices, H·D·d + 3·d·f, also see only these tokens.
    - FLOPs of attention: 4·H·D·L for each visible (query, key) pair, n·p + n·(n + 1)/2 in a row
      (2 for the score, 2 for the weighted sum).  Norms, rotation and softmax are left out: they
      are below a hundredth of the rest.
    - Weight bytes: e times every layer's matrices and norms, the final norm and the head, once a
      pass however many rows share them.  An untied embedding adds only its T gathered rows; a
      tied one is the head, read whole already.
    - KV bytes: keys and values, 2·K·D·e a token and layer: n + p slots are read, n written.
    """
    cfg, tokens = config, sum(new_tokens)
    head_weights = cfg.vocab_size * cfg.hidden_size
    qkv_weights = cfg.hidden_size * (cfg.num_heads + 2 * cfg.num_kv_heads) * cfg.head_dim
    late_weights = cfg.hidden_size * (cfg.num_heads * cfg.head_dim + 3 * cfg.intermediate_size)
    layer_weights = qkv_weights + late_weights
    pairs = sum(n * p + n * (n + 1) // 2 for n, p in zip(new_tokens, held_tokens, strict=True))
    logits = len(new_tokens) if last_only else tokens
    norm_weights = (2 * cfg.num_layers + 1) * cfg.hidden_size
    gathered = 0 if cfg.tied_embeddings else tokens * cfg.hidden_size
    kv_bytes = cfg.num_layers * 2 * cfg.num_kv_heads * cfg.head_dim * element_bytes
    return Cost(
        flops=2 * tokens * cfg.num_layers * layer_weights
        - 2 * (tokens - logits) * late_weights
        + 2 * logits * head_weights
        + 4 * cfg.num_heads * cfg.head_dim * cfg.num_layers * pairs,
        weight_bytes=element_bytes
        * (cfg.num_layers * layer_weights + norm_weights + head_weights + gathered),
        kv_read_bytes=(tokens + sum(held_tokens)) * kv_bytes,
        kv_written_bytes=tokens * kv_bytes,
    )
