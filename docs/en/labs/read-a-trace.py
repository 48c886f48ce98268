# %% [markdown]
# # Read a trace yourself { #read-a-trace }
#
# Every figure of this site is drawn from a file that you can open with a few lines of code. This
# page is a notebook: it ran when the site was built, and it runs on your machine.
#
# ## Open one { #open }
#
# A trace is a Parquet file, one for each technique and machine. DuckDB reads it in place.

# %%
import json

import altair as alt
import duckdb
import pyarrow.parquet as pq

from docs.figures import notebook, theme
from docs.figures.units import bytes_text, significant

root = notebook.setup()
traces = sorted(root.glob("traces/*/prefill_decode.parquet"))
trace = traces[0]
print(*(path.relative_to(root) for path in traces), sep="\n")

# %% [markdown]
# One row is one event: a step of the algorithm, with what it did and how long it took. Here is the
# beginning of one answer.

# %%
duckdb.sql(f"""
    SELECT step, event, phase, new_tokens, text, bytes_read, dur_ns
    FROM '{trace}'
    WHERE scenario = 'story_plants' AND repeat = 0
    ORDER BY step LIMIT 6
""")

# %% [markdown]
# ## Who recorded it { #metadata }
#
# The file says so itself, as JSON in its metadata.

# %%
meta = json.loads(pq.read_schema(trace).metadata[b"iol"])
print("machine   ", meta["machine"]["name"])
print("model     ", meta["model"]["name"])
print("command   ", meta["command"])
print("threads   ", meta["threads"])
print("reads     ", bytes_text(meta["machine"]["read_bytes_per_s"]), "a second, at best")

# %% [markdown]
# ## Which line did it { #code }
#
# Each event knows the line on which the algorithm paused, and the metadata holds the source text
# that ran. So a row can be taken back to its code, even when the code has changed since.

# %%
source = meta["source"]["text"].splitlines()
paused = duckdb.sql(f"""
    SELECT event, line, count(*) AS events
    FROM '{trace}' GROUP BY ALL ORDER BY line
""").fetchall()
for event, line, events in paused:
    print(f"{events:5} × {event:9} line {line:3}   {source[line - 1].strip()}")

# %% [markdown]
# ## Counted numbers repeat, measured ones do not { #counted-and-measured }
#
# Every scenario was run several times. Columns that end in `_ns` come from a clock. All others are
# counted, and must come out the same in each repeat.

# %%
steps = duckdb.sql(f"""
    SELECT step, phase,
           count(DISTINCT flops) AS different_flops,
           min(dur_ns) / 1e6 AS fastest_ms,
           median(dur_ns) / 1e6 AS median_ms,
           max(dur_ns) / 1e6 AS slowest_ms
    FROM '{trace}'
    WHERE scenario = 'story_plants' AND event = 'Pass'
    GROUP BY step, phase ORDER BY step
""")
steps.limit(5)

# %% [markdown]
# How far apart are the repeats? Give an Altair chart to `notebook.show`, with the sentence that it
# should prove. The sentence is computed, so that it stays true when you record again.

# %%
rows = [dict(zip(steps.columns, row, strict=True)) for row in steps.fetchall()]
spread = max(row["slowest_ms"] / row["fastest_ms"] for row in rows)

x = alt.X("step:O", title="step")
phases = theme.color_scale({"prefill": theme.PREFILL, "decode": theme.DECODE})
color = alt.Color("phase:N", title=None, scale=phases)
base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=color)
y = alt.Y("fastest_ms:Q", title="time of the step (ms)", scale=alt.Scale(type="log", nice=False))
chart = base.mark_rule(strokeWidth=3).encode(y=y, y2="slowest_ms") + base.mark_point().encode(
    y="median_ms:Q", shape=alt.Shape("phase:N", title=None, scale=alt.Scale(domain=phases.domain))
)
notebook.show(
    chart.properties(height=220),
    title=f"The same step took up to {significant(spread, 2)} times as long in another repeat",
    kind="measured",
    notice="A line spans the fastest and the slowest repeat of one step; the point is the median. "
    "Figures on this site use the median.",
    columns={
        "step": "step",
        "phase": "phase",
        "fastest_ms": "fastest, ms",
        "slowest_ms": "slowest, ms",
    },
    parquet=trace,
)

# %% [markdown]
# ## From two columns to an explanation { #bandwidth }
#
# Bytes are counted and time is measured. Their quotient says how hard a pass drives the memory.

# %%
best = meta["machine"]["read_bytes_per_s"] / 1e9
rows = [
    {"step": step, "phase": phase, "gb_per_s": rate}
    for step, phase, rate in duckdb.sql(f"""
        SELECT step, phase, median(bytes_read / dur_ns) AS gb_per_s
        FROM '{trace}'
        WHERE scenario = 'story_plants' AND event = 'Pass'
        GROUP BY step, phase ORDER BY step
    """).fetchall()
]
decode = sorted(row["gb_per_s"] for row in rows if row["phase"] == "decode")
middle = decode[len(decode) // 2]

bars = (
    alt.Chart(alt.Data(values=rows))
    .mark_bar()
    .encode(x=x, y=alt.Y("gb_per_s:Q", title="read from memory (GB/s)"), color=color)
)
ceiling = alt.Chart().mark_rule(strokeDash=[4, 3]).encode(y=alt.datum(best))
notebook.show(
    (bars + ceiling).properties(height=220),
    title=f"A decode step reads {significant(middle, 2)} GB/s, "
    f"{middle / best:.0%} of what this memory can deliver",
    kind="measured",
    notice="Dashed: the fastest reading that was measured on this machine. The closer a bar comes "
    "to it, the more the pass waits for memory rather than for arithmetic.",
    columns={"step": "step", "phase": "phase", "gb_per_s": "GB/s"},
    parquet=trace,
)

# %% [markdown]
# ## Your turn { #your-turn }
#
# Take the notebook from the link below into `docs/en/labs/` of a clone, and open it in VS Code, or
# in Jupyter with Jupytext, with `PYTHONPATH` set to the clone's folder. Then try:
#
# 1. The scenarios `prompt_8` to `prompt_512` differ in prompt length alone. At which length does
#    the time for each token of prefill stop falling?
# 2. The scenarios `batch_1` to `batch_32` decode for more and more sequences. How many tokens a
#    second come out of each?
# 3. Record on your own machine with `make traces`, set `trace` to the new file, and see which of
#    the two sentences above change.
