"""Engine speed beside `transformers`: `python -m tests.bench.engine`.

Same weights, threads and prompt, greedy, float32 on the CPU, each with its own KV cache. Prefill is
the time to the first token, decode the median time between tokens. The two engines take turns, each
going first in every other round. A round gives one ratio, of times a second or two apart, so that a
machine whose speed drifts slows both; the median ratio counts. Exits 1 if one is too low.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

from tests.model.peer import transformers_twin
from tracegen.model import Model, Sampler, load_model
from tracegen.techniques.kv_cache import new_cache
from tracegen.techniques.prefill_decode import decode, prefill

PROMPT_TOKENS = (64, 512)
NEW_TOKENS = 49
ROUNDS = 21
THREADS = 2
LEAST_RATIO = {"prefill": 1.0, "decode": 1.5}
TEXT = "The lighthouse keeper wrote down the weather, the ships and the hour of every lamp. "

Answer = tuple[list[int], list[float]]  # tokens, and when each came after the start, in seconds


def ours(model: Model, prompt: list[int]) -> Answer:
    """What `generate` does, with the clock read at each token."""
    start = time.perf_counter()
    cache, sampler = new_cache(model, len(prompt) + NEW_TOKENS), Sampler()
    token = prefill(model, torch.tensor([prompt]), cache, sampler)
    tokens, times = [int(token)], [time.perf_counter() - start]
    while len(tokens) < NEW_TOKENS:
        token = decode(model, token, cache, sampler)
        tokens.append(int(token))
        times.append(time.perf_counter() - start)
    return tokens, times


class Clock(BaseStreamer):
    """Notes when `generate` hands over the prompt and then each token."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.seen.append(time.perf_counter())

    def end(self) -> None:
        pass


def theirs(twin: LlamaForCausalLM, prompt: list[int]) -> Answer:
    clock, tokens = Clock(), torch.tensor([prompt])
    start = time.perf_counter()
    out = twin.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        streamer=clock,
    )
    return out[0, len(prompt) :].tolist(), [at - start for at in clock.seen[1:]]


def seconds(run: Callable[[], Answer]) -> dict[str, float]:
    """Runs once: seconds to the first token, and the median between tokens."""
    _, times = run()
    return {"prefill": times[0], "decode": median(b - a for a, b in itertools.pairwise(times))}


def main() -> int:
    torch.set_num_threads(THREADS)
    console = Console()
    model = load_model(device="cpu", dtype=torch.float32)
    twin = transformers_twin(model)
    twin.generation_config.eos_token_id = None  # neither engine stops early
    table = Table(
        "phase", "prompt", "this engine", "transformers", "ratio", "at least", "",
        title=f"{model.name}, float32, {THREADS} threads, tokens/s",
    )  # fmt: skip
    passed = True
    for length in PROMPT_TOKENS:
        prompt = (model.tokenizer.encode(TEXT) * length)[:length]
        engines = (lambda p=prompt: ours(model, p), lambda p=prompt: theirs(twin, p))
        if engines[0]()[0] != engines[1]()[0]:  # and both are warm now
            console.print(f"the engines disagree on the {length}-token prompt")
            return 1
        rounds = []
        for number in track(range(ROUNDS), f"{length}-token prompt", console=console):
            order = engines if number % 2 else engines[::-1]
            taken = [seconds(engine) for engine in order]
            rounds.append(taken if number % 2 else taken[::-1])
        for phase, least in LEAST_RATIO.items():
            mine, other = (
                median(each[phase] for each in engine) for engine in zip(*rounds, strict=True)
            )
            ratio = median(b[phase] / a[phase] for a, b in rounds)
            tokens = length if phase == "prefill" else 1
            passed &= ratio >= least
            table.add_row(
                phase,
                str(length),
                f"{tokens / mine:.1f}",
                f"{tokens / other:.1f}",
                f"{ratio:.2f}x",
                f"{least:.1f}x",
                "[green]pass" if ratio >= least else "[red]FAIL",
            )
    console.print(table)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
