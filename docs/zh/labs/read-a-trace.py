# %% [markdown]
# # 自己动手读一份 trace { #read-a-trace }
#
# 本站的每张图都画自一个文件，几行代码就能打开它。这一页本身就是 notebook：构建网站时它真的运行过，
# 在你的机器上也能运行。
#
# ## 打开文件 { #open }
#
# 一份 trace 就是一个 Parquet 文件，每种技术、每台机器各一个。DuckDB 可以直接查询，不必先导入。

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
# 一行是一个事件，也就是算法走的一步：做了什么，用了多久。下面是一次回答的开头。

# %%
duckdb.sql(f"""
    SELECT step, event, phase, new_tokens, text, bytes_read, dur_ns
    FROM '{trace}'
    WHERE scenario = 'story_plants' AND repeat = 0
    ORDER BY step LIMIT 6
""")

# %% [markdown]
# ## 谁录的 { #metadata }
#
# 文件自己会说：元数据里有一段 JSON。

# %%
meta = json.loads(pq.read_schema(trace).metadata[b"iol"])
print("机器      ", meta["machine"]["name"])
print("模型      ", meta["model"]["name"])
print("录制命令  ", meta["command"])
print("线程数    ", meta["threads"])
print("读内存    ", "最快每秒", bytes_text(meta["machine"]["read_bytes_per_s"]))

# %% [markdown]
# ## 是哪一行代码 { #code }
#
# 每个事件都记下了算法停在哪一行，元数据里还存着当时运行的源码全文。所以哪怕代码后来改了，
# 也能从任意一行数据找回当时那行代码。

# %%
source = meta["source"]["text"].splitlines()
paused = duckdb.sql(f"""
    SELECT event, line, count(*) AS events
    FROM '{trace}' GROUP BY ALL ORDER BY line
""").fetchall()
for event, line, events in paused:
    print(f"{events:5} × {event:9} 第 {line:3} 行   {source[line - 1].strip()}")

# %% [markdown]
# ## 计数次次相同，实测次次不同 { #counted-and-measured }
#
# 每个场景都重复录了几遍。以 `_ns` 结尾的列来自时钟，其余各列都是数出来的，每一遍必须完全一致。

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
# 几遍之间差多少？把 Altair 图交给 `notebook.show`，再附上一句这张图要证明的话。
# 这句话是算出来的，重新录制之后依然成立。

# %%
rows = [dict(zip(steps.columns, row, strict=True)) for row in steps.fetchall()]
spread = max(row["slowest_ms"] / row["fastest_ms"] for row in rows)

x = alt.X("step:O", title="步")
phases = theme.color_scale({"prefill": theme.PREFILL, "decode": theme.DECODE})
color = alt.Color("phase:N", title=None, scale=phases)
base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=color)
y = alt.Y("fastest_ms:Q", title="单步时间（ms）", scale=alt.Scale(type="log", nice=False))
chart = base.mark_rule(strokeWidth=3).encode(y=y, y2="slowest_ms") + base.mark_point().encode(
    y="median_ms:Q", shape=alt.Shape("phase:N", title=None, scale=alt.Scale(domain=phases.domain))
)
notebook.show(
    chart.properties(height=220),
    title=f"同一步在不同遍之间，最慢是最快的 {significant(spread, 2)} 倍",
    kind="measured",
    notice="竖线的两端是同一步最快和最慢的一遍，点是中位数。本站的图一律用中位数。",
    columns={"step": "步", "phase": "阶段", "fastest_ms": "最快（ms）", "slowest_ms": "最慢（ms）"},
    parquet=trace,
)

# %% [markdown]
# ## 两列数据，一个解释 { #bandwidth }
#
# 字节是数出来的，时间是测出来的。两者相除，就知道一次前向把内存用到了几成。

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
    .encode(x=x, y=alt.Y("gb_per_s:Q", title="读内存的速率（GB/s）"), color=color)
)
ceiling = alt.Chart().mark_rule(strokeDash=[4, 3]).encode(y=alt.datum(best))
notebook.show(
    (bars + ceiling).properties(height=220),
    title=f"一步解码每秒读 {significant(middle, 2)} GB，是本机内存极限的 {middle / best:.0%}",
    kind="measured",
    notice="虚线是在这台机器上测得的最快读取速率。柱子离它越近，这一步就越是在等内存，而不是在等计算。",
    columns={"step": "步", "phase": "阶段", "gb_per_s": "GB/s"},
    parquet=trace,
)

# %% [markdown]
# ## 轮到你了 { #your-turn }
#
# 从下面的链接取走这个 notebook，放到仓库克隆的 `docs/zh/labs/` 里，把 `PYTHONPATH` 设为仓库目录，
# 用 VS Code 或装有 Jupytext 的 Jupyter 打开，然后试试：
#
# 1. 场景 `prompt_8` 到 `prompt_512` 只有提示词长度不同。从多长开始，预填充平均到每个 token 的时间不再下降？
# 2. 场景 `batch_1` 到 `batch_32` 同时为越来越多的序列解码。每一档每秒各产出多少个 token？
# 3. 用 `make traces` 在你自己的机器上录一遍，让 `trace` 指向新文件，看看上面两句话哪一句变了。
