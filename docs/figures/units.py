"""Numbers as people read them, for titles and narration (axes use Vega's own formats)."""

from __future__ import annotations


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, never in scientific notation: 1234.5 → "1,230"."""
    if value == 0:
        return "0"
    text = f"{float(f'{value:.{digits - 1}e}'):,.12f}"
    return text.rstrip("0").rstrip(".")


def scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    """`value` in the largest of `units` (each `base` times the one before) that keeps it ≥ 1."""
    for unit in units[:-1]:
        if abs(float(f"{value:.2e}")) < base:
            return f"{significant(value)} {unit}"
        value /= base
    return f"{significant(value)} {units[-1]}"


def bytes_text(value: float) -> str:
    """Bytes with decimal prefixes: 270_000_000 → "270 MB"."""
    return scaled(value, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def time_text(ns: float) -> str:
    """Nanoseconds in a readable unit: 12_300_000 → "12.3 ms"."""
    return scaled(ns, 1000, ("ns", "µs", "ms", "s"))


def count_text(value: float) -> str:
    """A large count with a prefix: 4_200_000_000 → "4.2 G"."""
    return scaled(value, 1000, ("", "k", "M", "G", "T", "P")).rstrip()
