"""What recording costs: `python -m tests.bench.recorder`.

Decodes the same tokens with the recorder and without, in one process, turn by turn, and compares
the time from the first token to the last. Fails above 3 %.
"""

from __future__ import annotations

import statistics
import sys

import torch
from rich.console import Console

from tests.bench.engine import NEW_TOKENS, ours
from tracegen import machine
from tracegen.model import Model, load_model
from tracegen.record import drive
from tracegen.techniques.prefill_decode import Generation, Pass, run
from tracegen.workloads import filler_tokens

LIMIT = 0.03
ROUNDS = 12
SCENARIO = Generation(name="bench", prompt_tokens=32, max_new_tokens=NEW_TOKENS)


def plain_seconds(model: Model) -> float:
    """Decode time of the bare loop."""
    _, times = ours(model, filler_tokens(model.tokenizer, SCENARIO.prompt_tokens))
    return times[-1] - times[0]


def recorded_seconds(model: Model) -> float:
    """Decode time of the same passes, narrated and driven by the recorder."""
    with torch.inference_mode():
        rows = drive(run(SCENARIO, model), lambda: machine.synchronize(model.device))
    passes = [row.t_ns for row in rows if isinstance(row.event, Pass)]
    return (passes[-1] - passes[0]) / 1e9


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
