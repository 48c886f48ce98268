"""Text as tokens that change with the step, laid out in lines."""

from __future__ import annotations

import altair as alt

from docs.figures import theme

ROW_CHARACTERS = 54
CELL_HEIGHT = 24


def shown(text: str) -> str:
    """A token's text with its line breaks visible."""
    return text.replace("\n", "⏎")


def token_flow(texts: list[tuple[str, int, int]]) -> alt.LayerChart | alt.FacetChart:
    """Tokens (text, born, fed), wrapped like text: prompt first, the answer on a new line.

    `born` is the step at which a token appears (0: prompt), `fed` the one at which it goes through
    the model. Before that it is outlined, then coloured by phase, from then on pale: cached.
    """
    cells, row, column, answer = [], 0.0, 0, False
    for text, born, fed in texts:
        width = len(shown(text)) + 1
        answer_begins = born > 0 and not answer
        answer = answer or answer_begins
        if column + width > ROW_CHARACTERS or answer_begins:
            row, column = row + 1 + 0.35 * answer_begins, 0
        place = {"row": row, "x": column, "x2": column + width - 0.3}
        cells.append(place | {"text": shown(text), "born": born, "fed": fed, "prompt": born == 0})
        column += width
    height = (row + 1) * CELL_HEIGHT
    base = (
        alt.Chart(alt.InlineData(values=cells, name="cells"))
        .transform_filter("datum.born <= step")
        .transform_calculate(
            y="datum.row + 0.08",
            y2="datum.row + 0.92",
            middle="datum.row + 0.5",
            center="(datum.x + datum.x2) / 2",
        )
        .properties(height=height)
    )
    y = alt.Scale(domain=[row + 1, 0], nice=False)
    x = alt.Scale(domain=[0, ROW_CHARACTERS], nice=False)
    box = base.mark_rect(cornerRadius=2, strokeWidth=1).encode(
        x=alt.X("x:Q", scale=x, axis=None),
        x2="x2:Q",
        y=alt.Y("y:Q", scale=y, axis=None),
        y2="y2:Q",
        fill=alt.when("datum.fed > step")
        .then(alt.value("transparent"))
        .when("datum.fed < step")
        .then(alt.value(theme.CACHED))
        .when("datum.prompt")
        .then(alt.value(theme.PREFILL))
        .otherwise(alt.value(theme.DECODE)),
        fillOpacity=alt.condition("datum.fed < step", alt.value(0.28), alt.value(1)),
        stroke=alt.condition("datum.fed > step", alt.value(theme.MUTED), alt.value("transparent")),
    )
    label = base.mark_text(
        font=theme.MONO,
        baseline="middle",
        fontSize=alt.expr(f"min(13, width / {ROW_CHARACTERS} * 1.6)"),
    ).encode(
        x=alt.X("center:Q", scale=x, axis=None),
        y=alt.Y("middle:Q", scale=y, axis=None),
        text="text:N",
        color=alt.when("datum.fed != step")
        .then(alt.value(theme.INK))
        .when("datum.prompt")
        .then(alt.value("white"))
        .otherwise(alt.value(theme.ON_COLOR)),
    )
    return alt.layer(box, label)
