"""Prefill and decode: read the prompt in one pass, then write the answer token by token.

A decoder-only model predicts the next token from all tokens before it. The prompt is known whole,
so one forward pass covers all its P tokens (prefill). Each new token depends on the one before,
so the answer takes one pass a token (decode). Both read the same weights:

    intensity = FLOPs / bytes ≈ 2 · N · T / (N · e)  =  2 T / e

| symbol | meaning                                   | unit        |
|--------|-------------------------------------------|-------------|
| N      | weights                                   | numbers     |
| T      | tokens in the pass, over the whole batch  | tokens      |
| e      | size of one weight                        | bytes       |

Prefill has T = batch · P and is bound by arithmetic; decode has T = batch and is bound by memory
as long as 2 T / e stays below the machine's FLOP rate / bandwidth.

Source: Pope et al., "Efficiently Scaling Transformer Inference", MLSys 2023, section 2.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from tracegen.errors import UserError
from tracegen.events import Event, Scenario
from tracegen.model import Cache, Model, Sampler
from tracegen.model.cost import forward_cost
from tracegen.techniques.kv_cache import new_cache
from tracegen.workloads import QUESTIONS, filler_tokens


@dataclass(frozen=True, slots=True)
class Encoded(Event):
    """The prompt became tokens. `tokens` are the texts of one row."""

    batch: int
    prompt_tokens: int
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pass(Event):
    """One forward pass and the token that each row sampled from it; `text` is that of row 0."""

    phase: str
    batch: int
    new_tokens: int
    context_tokens: int
    flops: int
    weight_bytes: int
    kv_read_bytes: int
    bytes_read: int
    bytes_written: int
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """Generation ended: `reason` is "stop token" or "length"."""

    reason: str
    output_tokens: int


# --8<-- [start:generate]
def prefill(model: Model, prompt: Tensor, cache: Cache, sampler: Sampler) -> Tensor:
    """Run the whole prompt (batch, length) once, fill the cache, return the next token (batch,)."""
    logits = model.forward(prompt, cache, last_only=True)
    return sampler(logits[:, -1])


def decode(model: Model, token: Tensor, cache: Cache, sampler: Sampler) -> Tensor:
    """Run one token a row (batch,) against the cache, return the next token (batch,)."""
    logits = model.forward(token[:, None], cache, last_only=True)
    return sampler(logits[:, -1])


def generate(
    model: Model,
    prompt_ids: list[int],
    max_new_tokens: int,
    sampler: Sampler | None = None,
    stop_ids: Collection[int] | None = None,
) -> list[int]:
    """The new tokens, at most `max_new_tokens`; a stop token ends the list and is its last item.

    `stop_ids` defaults to the model's end-of-sequence tokens, `sampler` to greedy. Raises UserError
    for an empty prompt, or one that does not fit the context with its answer.
    """
    check_fits(model, len(prompt_ids), max_new_tokens)
    sampler = sampler or Sampler()
    stop_ids = model.config.eos_ids if stop_ids is None else stop_ids
    output: list[int] = []
    if max_new_tokens == 0:
        return output
    cache = new_cache(model, len(prompt_ids) + max_new_tokens)
    token = prefill(model, torch.tensor([prompt_ids]), cache, sampler)
    output.append(int(token))
    while len(output) < max_new_tokens and output[-1] not in stop_ids:
        token = decode(model, token, cache, sampler)
        output.append(int(token))
    return output


# --8<-- [end:generate]


def check_fits(model: Model, prompt_tokens: int, max_new_tokens: int) -> None:
    """Raises UserError unless prompt and answer fit the model's context."""
    if prompt_tokens == 0:
        raise UserError("the prompt is empty: give at least one token")
    if max_new_tokens < 0:
        raise UserError(f"max_new_tokens is {max_new_tokens}: give 0 or more")
    limit = model.config.max_positions
    if prompt_tokens + max_new_tokens > limit:
        raise UserError(
            f"{prompt_tokens} prompt tokens and {max_new_tokens} new ones exceed the context of "
            f"{limit} tokens: shorten the prompt or ask for fewer"
        )


@dataclass(frozen=True, kw_only=True)
class Generation(Scenario):
    """A prompt (a question of workloads.py, or filler of `prompt_tokens`) and how to answer it.

    With a question, generation stops at the model's stop token; with filler it never does, so that
    a sweep always has the same steps.
    """

    max_new_tokens: int
    question: str = ""
    prompt_tokens: int = 0
    batch: int = 1
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None


SCENARIOS = [
    Generation(name="story_plants", question="plants", max_new_tokens=40),
    Generation(
        name="story_kettle",
        question="kettle",
        max_new_tokens=40,
        temperature=0.8,
        top_k=50,
        top_p=0.95,
        seed=3,
    ),
    *(
        Generation(
            name=f"prompt_{length}",
            preset="quick" if length <= 512 else "full",
            prompt_tokens=length,
            max_new_tokens=5,
        )
        for length in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
    ),
    *(
        Generation(name=f"batch_{batch}", prompt_tokens=32, batch=batch, max_new_tokens=5)
        for batch in (1, 2, 4, 8, 16, 32)
    ),
]


def run(s: Generation, model: Model) -> Generator[Event, None, None]:
    """Generate for one scenario and say what each pass did."""
    prompt, stop_ids = prepare(s, model)
    texts = map(model.tokenizer.token_text, prompt[0].tolist())
    yield Encoded(s.batch, prompt.shape[1], tuple(texts))

    sampler = Sampler(s.temperature, s.top_k, s.top_p, s.seed)
    cache = new_cache(model, prompt.shape[1] + s.max_new_tokens, s.batch)
    token = prefill(model, prompt, cache, sampler)
    yield describe(model, "prefill", prompt, cache, token)

    output = 1
    while output < s.max_new_tokens and int(token[0]) not in stop_ids:
        fed = token
        token = decode(model, fed, cache, sampler)
        output += 1
        yield describe(model, "decode", fed[:, None], cache, token)
    yield Finished("stop token" if int(token[0]) in stop_ids else "length", output)


def prepare(s: Generation, model: Model) -> tuple[Tensor, Collection[int]]:
    """The scenario's prompt (batch, length) and its stop tokens. Raises UserError as generate."""
    tokenizer = model.tokenizer
    if s.question:
        prompt_ids = tokenizer.encode(tokenizer.chat(QUESTIONS[s.question]))
        stop_ids: Collection[int] = model.config.eos_ids
    else:
        prompt_ids, stop_ids = filler_tokens(tokenizer, s.prompt_tokens), ()
    check_fits(model, len(prompt_ids), s.max_new_tokens)
    return torch.tensor([prompt_ids] * s.batch), stop_ids


def describe(model: Model, phase: str, fed: Tensor, cache: Cache, token: Tensor) -> Pass:
    """What the pass over `fed` (batch, new) cost by formula; called after it, so the cache
    already holds the new tokens."""
    batch, new = fed.shape
    context = cache.lengths[0]
    cost = forward_cost(
        model.config,
        new_tokens=[new] * batch,
        held_tokens=[context - new] * batch,
        element_bytes=model.dtype.itemsize,
        last_only=True,
    )
    ids = tuple(token.tolist())
    return Pass(
        phase=phase,
        batch=batch,
        new_tokens=new,
        context_tokens=context,
        flops=cost.flops,
        weight_bytes=cost.weight_bytes,
        kv_read_bytes=cost.kv_read_bytes,
        bytes_read=cost.weight_bytes + cost.kv_read_bytes,
        bytes_written=cost.kv_written_bytes,
        token_ids=ids,
        text=model.tokenizer.token_text(ids[0]),
    )
