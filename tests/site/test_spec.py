"""Charts become specs of open width that fit wherever they are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt
import pytest

from docs.figures import posters, spec, theme
from tests.site.figures.toy import COLUMNS, ROWS, bars
from tracegen.errors import UserError

LONG = [{"name": f"a rather long label {n}", "x": n, "y": n % 3} for n in range(12)]


def charts() -> dict[str, Any]:
    """One chart of each way to compose."""
    dots = alt.Chart(alt.Data(values=LONG)).mark_point().encode(x="x:Q", y="y:Q")
    labelled = alt.Chart(alt.Data(values=LONG)).mark_bar().encode(x="x:Q", y="name:N")
    return {
        "unit": bars(),
        "long labels": labelled,
        "layer": bars() + bars().mark_rule(),
        "vconcat": labelled & dots,
        "hconcat": bars().encode(color=alt.value("red")) | dots,
        "facet": dots.encode(column="y:N"),
        "wide legend": dots.encode(color=alt.Color("name:N", legend=alt.Legend(columns=3))),
        "fixed panel": alt.hconcat(dots, dots.properties(width=60)),
    }


@pytest.mark.parametrize("name", charts())
@pytest.mark.parametrize("total", [theme.WIDE, theme.BESIDE_CODE])
def test_posters_have_the_width_asked_for(name: str, total: int, tmp_path: Path) -> None:
    chart = spec.to_spec(charts()[name], name)
    sizing = posters.measure(chart, tmp_path)
    poster = posters.draw(
        spec.with_width(chart, sizing.plot_width(total)), theme.config(), tmp_path
    )
    assert total - 12 <= poster.width <= total + 6


def test_dark_differs_in_colour_only(tmp_path: Path) -> None:
    chart = spec.to_spec(bars(), "bars")
    drawn = posters.draw_all(chart, posters.measure(chart, tmp_path), theme.WIDE, tmp_path)
    light, dark = drawn["light-wide"], drawn["dark-wide"]
    assert (light.width, light.height) == (dark.width, dark.height)
    assert theme.in_dark(light.svg) == dark.svg != light.svg


def test_cache_is_used(tmp_path: Path) -> None:
    sized = spec.with_width(spec.to_spec(bars(), "bars"), 300)
    posters.draw(sized, theme.config(), tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text().replace("<svg", '<svg data-cached="1"'))
    assert 'data-cached="1"' in posters.draw(sized, theme.config(), tmp_path).svg


def test_no_foreign_address_and_no_theme_in_a_spec() -> None:
    text = json.dumps(spec.to_spec(bars(), "bars"))
    assert "http" not in text
    assert "config" not in text


def test_equal_rows_are_sent_once() -> None:
    chart = spec.to_spec(bars() & bars().mark_line(), "two")
    assert list(map(len, chart["datasets"].values())) == [len(ROWS)]
    assert spec.main_dataset(chart, COLUMNS, "two") in chart["datasets"]


def test_nan_is_refused() -> None:
    chart = alt.Chart(alt.Data(values=[{"x": float("nan")}])).mark_point().encode(x="x:Q")
    with pytest.raises(UserError, match="NaN"):
        spec.to_spec(chart, "f")


def test_time_must_be_utc() -> None:
    chart = alt.Chart(alt.Data(values=[{"t": 1728172800000}])).mark_point()
    spec.to_spec(chart.encode(x=alt.X("t:T", scale=alt.Scale(type="utc"))), "f")
    spec.to_spec(chart.encode(x=alt.X("utcyearmonth(t):T")), "f")
    for encoding in (alt.X("t:T"), alt.X("yearmonth(t):T")):
        with pytest.raises(UserError, match="utc"):
            spec.to_spec((chart.encode(x=encoding) & chart), "f")


def test_too_many_rows_are_refused() -> None:
    many = alt.Chart(alt.Data(values=[{"x": n} for n in range(6000)])).mark_bar()
    with pytest.raises(UserError, match="aggregate"):
        spec.to_spec(many.encode(x="x:Q"), "f")


def test_step_start() -> None:
    assert spec.step_start(spec.to_spec(bars(), "f")) is None
    assert spec.step_start(spec.to_spec(bars().add_params(theme.step_param(7)), "f")) == 7
