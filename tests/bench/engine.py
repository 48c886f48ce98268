"""Engine speed beside `transformers`: `python -m tests.bench.engine`.

Same weights, threads and prompt, greedy, float32 on the CPU, each with its own KV cache. Prefill is
the time to the first token; decode is what the other tokens take on top of it. The two engines
take turns, each round gives one ratio, and the median ratio counts. Exits 1 if a ratio is too low.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.model.peer import transformers_twin
from tracegen.model import load_model
from tracegen.techniques.prefill_decode import generate

PROMPT_TOKENS = (64, 512)
NEW_TOKENS = 33
ROUNDS = 9
THREADS = 2
LEAST_RATIO = {"prefill": 1.0, "decode": 1.5}
TEXT = "The lighthouse keeper wrote down the weather, the ships and the hour of every lamp. "

Generate = Callable[[list[int], int], list[int]]


def main() -> int:
    torch.set_num_threads(THREADS)
    console = Console()
    model = load_model(device="cpu", dtype=torch.float32)
    twin = transformers_twin(model)
    twin.generation_config.eos_token_id = None  # neither engine stops early

    def ours(prompt: list[int], new: int) -> list[int]:
        return generate(model, prompt, new, stop_ids=())

    def theirs(prompt: list[int], new: int) -> list[int]:
        tokens = torch.tensor([prompt])
        mask = torch.ones_like(tokens)
        out = twin.generate(
            tokens, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0
        )
        answer: list[int] = out[0, len(prompt) :].tolist()
        return answer

    table = Table(
        "phase", "prompt", "this engine", "transformers", "ratio", "at least", "",
        title=f"{model.name}, float32, {THREADS} threads, tokens/s, medians of {ROUNDS}",
    )  # fmt: skip
    passed = True
    for prompt_tokens in PROMPT_TOKENS:
        prompt = (model.tokenizer.encode(TEXT) * prompt_tokens)[:prompt_tokens]
        if ours(prompt, NEW_TOKENS) != theirs(prompt, NEW_TOKENS):  # and both are warm now
            console.print(f"the engines disagree on the {prompt_tokens}-token prompt")
            return 1
        rounds = [
            (rates(ours, prompt), rates(theirs, prompt))
            for _ in track(range(ROUNDS), f"{prompt_tokens}-token prompt", console=console)
        ]
        for phase, least in LEAST_RATIO.items():
            mine, other = ([engine[phase] for engine in side] for side in zip(*rounds, strict=True))
            ratio = median(a / b for a, b in zip(mine, other, strict=True))
            passed &= ratio >= least
            verdict = "[green]pass" if ratio >= least else "[red]FAIL"
            speeds = (f"{median(mine):.1f}", f"{median(other):.1f}")
            table.add_row(
                phase, str(prompt_tokens), *speeds, f"{ratio:.2f}x", f"{least:.1f}x", verdict
            )
    console.print(table)
    return 0 if passed else 1


def rates(engine: Generate, prompt: list[int]) -> dict[str, float]:
    """Tokens per second in each phase."""
    first, whole = seconds(engine, prompt, 1), seconds(engine, prompt, NEW_TOKENS)
    return {"prefill": len(prompt) / first, "decode": (NEW_TOKENS - 1) / (whole - first)}


def seconds(engine: Generate, prompt: list[int], new: int) -> float:
    start = time.perf_counter()
    engine(prompt, new)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
