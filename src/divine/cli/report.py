"""The figures of `divine bench` as tables for people and as a file for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from divine.cli.console import jsonable
from divine.errors import UsageError


def show(result: Mapping[str, Any]) -> None:
    """Print the tables; what is missing in `result` is left out."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    summary = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _summary(result):
        summary.add_row(name, value)
    console.print(summary)
    costs, efficiency = result.get("cost_ms", {}), result.get("efficiency", {})
    if costs:
        table = Table("rows in the pass", "ms", "relative", "efficiency", box=None, pad_edge=False)
        one = costs.get("1")
        for rows, cost in costs.items():
            relative = f"{cost / one:.2f}" if one else "-"
            share = f"{efficiency[rows]:.2f}" if rows in efficiency else "-"
            table.add_row(rows, f"{cost:.1f}", relative, share)
        console.print()
        console.print(table)


def _summary(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = []
    for name, value in result.get("machine", {}).items():
        lines.append((name.replace("_", " "), str(value)))
    if "memory_roof_gb_s" in result:
        lines.append(("memory roof", f"{result['memory_roof_gb_s']:.1f} GB/s"))
    for name, rate in result.get("in_cache_gmac_s", {}).items():
        lines.append((f"in cache, {name}", f"{rate:.1f} G multiply-adds/s"))
    if plain := result.get("plain"):
        share = f"{100 * plain['roof_share']:.0f} % of the roof"
        lines.append(("plain decoding", f"{plain['tok_s']:.1f} tok/s, {share}"))
    if prefill := result.get("prefill"):
        lines.append((f"prefill of {prefill['tokens']}", f"{prefill['tok_s']:.1f} tok/s"))
    if long := result.get("long_context"):
        share = f"{100 * long['roof_share']:.0f} % of the roof, keys and values counted"
        lines.append((f"decoding at {long['tokens']:,}", f"{long['tok_s']:.1f} tok/s, {share}"))
    if "load_s" in result:
        lines.append(("load", f"{result['load_s']:.2f} s"))
    if "peak_rss_mb" in result:
        lines.append(("peak memory", f"{result['peak_rss_mb']:.0f} MB"))
    return lines


def check_writable(path: Path) -> None:
    """Raise UsageError when write_json(path, ...) could not write."""
    partial = _partial(path)
    try:
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write the figures whole or not at all. Raises UsageError when the file cannot be written."""
    partial = _partial(path)
    try:
        partial.write_text(json.dumps(jsonable(result), indent=1, allow_nan=False) + "\n", "utf-8")
        partial.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written: {error.strerror or error}")
