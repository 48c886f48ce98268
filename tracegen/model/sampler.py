"""Chooses the next token from logits: greedy, or temperature with top-k and top-p."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tracegen.errors import UserError


class Sampler:
    """Callable that turns logits (batch, vocab) into one token per row, (batch,) int64 on the CPU.

    Temperature 0 takes the most likely token, the first one on ties.  Otherwise probabilities are
    softmax(logits / temperature), cut to the `top_k` most likely tokens and then to the smallest
    set whose mass reaches `top_p`, renormalised.  Probabilities and random numbers are computed on
    the CPU in float64 with a generator of its own, so that a seed gives one result on every device.
    Sources: Fan et al., 2018 (top-k); Holtzman et al., 2020 (top-p).
    """

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> None:
        if not 0.0 <= temperature < float("inf"):
            raise UserError(f"temperature is {temperature}; give 0 (greedy) or a positive number")
        if top_k is not None and top_k < 1:
            raise UserError(f"top_k is {top_k}; give a whole number of at least 1, or leave it out")
        if top_p is not None and not 0.0 < top_p <= 1.0:
            raise UserError(f"top_p is {top_p}; give a number above 0 and up to 1, or leave it out")
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: Tensor) -> Tensor:
        if self.temperature == 0.0:
            return logits.argmax(dim=-1).cpu()  # torch promises the first of equals
        cumulative = self.probabilities(logits).cumsum(dim=-1)
        u = torch.rand(
            (cumulative.shape[0], 1), generator=self._generator, dtype=torch.float64
        )  # in [0, 1)
        return torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True).squeeze(1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution that a token is drawn from: (batch, vocab) float64 on the CPU."""
        scores = logits.detach().to("cpu", torch.float64)
        if self.temperature == 0.0:
            return F.one_hot(scores.argmax(dim=-1), scores.shape[-1]).double()
        below = scores - scores.amax(dim=-1, keepdim=True)  # a tiny temperature stays finite
        p = (below / self.temperature).softmax(dim=-1)
        if self.top_k is None and self.top_p in (None, 1.0):
            return p
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            ordered[:, self.top_k :] = 0.0
            ordered = ordered / ordered.sum(dim=-1, keepdim=True)
        if self.top_p is not None and self.top_p < 1.0:
            mass_before = ordered.cumsum(dim=-1) - ordered
            ordered[mass_before >= self.top_p] = 0.0
        kept = torch.zeros_like(p).scatter_(-1, order, ordered)
        return kept / kept.sum(dim=-1, keepdim=True)
