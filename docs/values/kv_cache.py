"""Numbers that the page "The KV cache" says."""

from __future__ import annotations

from typing import Any

from docs.figures.api import Text
from docs.figures.kv_cache import next_token_rows
from docs.figures.units import bytes_text, significant
from docs.figures.values import value
from tracegen.roofline import datasheet_devices
from tracegen.trace import Trace


def next_token(trace: Trace, t: Text, cache: str, *, longest: bool) -> dict[str, Any]:
    """The row of one kind of cache at the shortest or longest recorded context."""
    rows = [row for row in next_token_rows(trace, t) if row["cache"] == cache]
    return rows[-1 if longest else 0]


def gain(trace: Trace, t: Text, *, longest: bool) -> str:
    """How many times faster the next token is with the cache."""
    none = next_token(trace, t, "none", longest=longest)
    cached = next_token(trace, t, "contiguous", longest=longest)
    return significant(none["ms"] / cached["ms"], 2)


def token_bytes(trace: Trace, model: str, heads: str = "own") -> float:
    """Bytes a token of a model's cache, as reserved."""
    rows = trace.query(
        """SELECT min(cache_bytes / capacity_tokens) AS bytes FROM trace
           WHERE scenario = 'sizes' AND shape_of = $model AND heads = $heads""",
        model=model,
        heads=heads,
    )
    return float(rows[0]["bytes"])


def slots(trace: Trace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reservation of the slots scenario, and its last pass."""
    rows = trace.query(
        """SELECT DISTINCT step, event, lengths, used_bytes, cache_bytes, batch, capacity_tokens
           FROM trace WHERE scenario = 'slots' ORDER BY step"""
    )
    return rows[0], [row for row in rows if row["event"] == "Stepped"][-1]


@value("counted")
def long_context(trace: Trace, t: Text) -> str:
    return f"{next_token(trace, t, 'contiguous', longest=True)['context']:,}"


@value("counted")
def short_context(trace: Trace, t: Text) -> str:
    return str(next_token(trace, t, "contiguous", longest=False)["context"])


@value("measured")
def gain_long(trace: Trace, t: Text) -> str:
    return gain(trace, t, longest=True)


@value("measured")
def gain_short(trace: Trace, t: Text) -> str:
    return gain(trace, t, longest=False)


@value("measured")
def recomputed_ms(trace: Trace, t: Text) -> str:
    return f"{significant(next_token(trace, t, 'none', longest=True)['ms'])} ms"


@value("measured")
def cached_ms(trace: Trace, t: Text) -> str:
    return f"{significant(next_token(trace, t, 'contiguous', longest=True)['ms'])} ms"


@value("measured")
def growing_ms(trace: Trace, t: Text) -> str:
    return f"{significant(next_token(trace, t, 'growing', longest=True)['ms'])} ms"


@value("counted")
def recomputed_gflop(trace: Trace, t: Text) -> str:
    return f"{significant(next_token(trace, t, 'none', longest=True)['gflop'])} GFLOP"


@value("counted")
def cached_gflop(trace: Trace, t: Text) -> str:
    return f"{significant(next_token(trace, t, 'contiguous', longest=True)['gflop'])} GFLOP"


@value("counted")
def growing_gflop(trace: Trace, t: Text) -> str:
    return f"{significant(next_token(trace, t, 'growing', longest=True)['gflop'])} GFLOP"


@value("counted")
def recomputed_mb(trace: Trace, t: Text) -> str:
    return f"{significant(next_token(trace, t, 'none', longest=True)['mb'])} MB"


@value("counted")
def cached_mb(trace: Trace, t: Text) -> str:
    return f"{significant(next_token(trace, t, 'contiguous', longest=True)['mb'])} MB"


@value("counted")
def growing_mb(trace: Trace, t: Text) -> str:
    return f"{significant(next_token(trace, t, 'growing', longest=True)['mb'])} MB"


@value("counted")
def copied_mb(trace: Trace, t: Text) -> str:
    return f"{significant(next_token(trace, t, 'growing', longest=True)['copied_mb'])} MB"


@value("counted")
def own_token_bytes(trace: Trace, t: Text) -> str:
    reserved, _ = slots(trace)
    return bytes_text(reserved["cache_bytes"] / (reserved["batch"] * reserved["capacity_tokens"]))


@value("counted")
def llama_token_bytes(trace: Trace, t: Text) -> str:
    return bytes_text(token_bytes(trace, "Llama-3-8B"))


@value("counted")
def llama_heads_ratio(trace: Trace, t: Text) -> str:
    return significant(
        token_bytes(trace, "Llama-3-8B", "multi-head") / token_bytes(trace, "Llama-3-8B")
    )


@value("counted")
def opt_token_kib(trace: Trace, t: Text) -> str:
    return f"{significant(token_bytes(trace, 'OPT-13B') / 1024)} KiB"


@value("counted")
def used_share(trace: Trace, t: Text) -> str:
    reserved, last = slots(trace)
    return f"{last['used_bytes'] / reserved['cache_bytes']:.0%}"


@value("counted")
def last_lengths(trace: Trace, t: Text) -> str:
    return t(", ", "、").join(map(str, slots(trace)[1]["lengths"]))


@value("counted")
def slots_reserved(trace: Trace, t: Text) -> str:
    reserved, _ = slots(trace)
    return f"{reserved['batch']} × {reserved['capacity_tokens']}"


@value("counted")
def llama_sequences_h100(trace: Trace, t: Text) -> str:
    """Sequences of 8,192 tokens whose caches alone would fill an H100."""
    memory = datasheet_devices()["h100-sxm"].memory_bytes
    return str(int(memory / (8192 * token_bytes(trace, "Llama-3-8B"))))


@value("counted")
def llama_sequences_mha(trace: Trace, t: Text) -> str:
    """The same with one key/value head for every query head."""
    memory = datasheet_devices()["h100-sxm"].memory_bytes
    return str(int(memory / (8192 * token_bytes(trace, "Llama-3-8B", "multi-head"))))


@value("counted")
def machine_name(trace: Trace, t: Text) -> str:
    return str(trace.meta["machine"]["name"])
