"""Prompts that scenarios run: a few short questions, and filler text of any length."""

from __future__ import annotations

from typing import Protocol

QUESTIONS = {
    "plants": "How do plants make food? Answer in one short sentence.",
    "kettle": "Write two lines about a kettle that dreams of the sea.",
}

FILLER = (
    "A server keeps the weights of a language model in memory and waits for requests. "
    "Each request brings a prompt; the model reads it whole, then writes its answer one token "
    "at a time, and for every token it must fetch all of its weights once more. "
    "Engineers who want it faster ask two questions: how much arithmetic does a step need, "
    "and how many bytes must move before that arithmetic can begin? "
)


class Encoder(Protocol):
    """What filler needs of a tokenizer."""

    def encode(self, text: str, special: bool = ...) -> list[int]:
        """Token ids of `text`."""


def filler_tokens(tokenizer: Encoder, count: int) -> list[int]:
    """Exactly `count` token ids of running English text, the same on every call."""
    once = tokenizer.encode(FILLER)
    return (once * (count // len(once) + 1))[:count]
