"""What recording costs: `python -m tests.bench.recorder`.

Decodes the same tokens with the recorder and without (the plain `generate`), in one process, turn
by turn, and compares the medians of the whole decode loop. Fails above 3 %.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from rich.console import Console

from tracegen import machine
from tracegen.model import Model, load_model
from tracegen.record import drive
from tracegen.techniques.prefill_decode import Generation, generate, run
from tracegen.workloads import filler_tokens

LIMIT = 0.03
ROUNDS = 12
SCENARIO = Generation(name="bench", prompt_tokens=32, max_new_tokens=33)


def plain_seconds(model: Model) -> float:
    """Time of `generate` from its second token on is all but prefill; take the whole."""
    prompt = filler_tokens(model.tokenizer, SCENARIO.prompt_tokens)
    machine.synchronize(model.device)
    start = time.perf_counter()
    generate(model, prompt, SCENARIO.max_new_tokens, stop_ids=())
    machine.synchronize(model.device)
    return time.perf_counter() - start


def recorded_seconds(model: Model) -> float:
    """The same passes, driven by the recorder."""
    start = time.perf_counter()
    with torch.inference_mode():
        drive(run(SCENARIO, model), lambda: machine.synchronize(model.device))
    return time.perf_counter() - start


def main() -> int:
    """Print both medians and their ratio; 1 when recording costs more than the limit."""
    model = load_model()
    plain_seconds(model), recorded_seconds(model)  # warm-up
    pairs = [(plain_seconds(model), recorded_seconds(model)) for _ in range(ROUNDS)]
    plain, recorded = (statistics.median(times) for times in zip(*pairs, strict=True))
    overhead = statistics.median(r / p for p, r in pairs) - 1
    verdict = "ok" if overhead <= LIMIT else "too slow"
    Console().print(
        f"recording: {recorded * 1e3:.0f} ms with, {plain * 1e3:.0f} ms without, "
        f"overhead {overhead:+.1%} (limit {LIMIT:.0%}): {verdict}"
    )
    return int(overhead > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
