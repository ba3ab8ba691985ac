"""The figures of `divine bench` as tables for people and as a file for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divine.bench import check_plot
from divine.cli.console import jsonable, print_json
from divine.errors import UsageError
from divine.files import check_replaceable, replacing

if TYPE_CHECKING:
    from rich.table import Table

SHOWN_DEPTHS = 5  # what 80 columns hold


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


def show_speculation(result: Mapping[str, Any]) -> None:
    """Print what drafting was worth: speed by class and drafter, and where the time went."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    settings, compared = result["settings"], result["comparisons"]
    console.print(
        f"{result['model']}, {settings['max_tokens']} tokens, temperature "
        f"{settings['temperature']:g}"
    )
    if draft_model := result.get("draft_model"):
        console.print(f"draft model {draft_model}")
    console.print("medians over the prompts of a class; ratio: times plain decoding")
    console.print()
    console.print(_speed_table(result["speculation"]))
    console.print()
    console.print(_time_table(result["speculation"]))
    console.print()
    console.print(
        f"{compared} answers compared with plain decoding: {len(result['differences'])} differ"
    )


def _speed_table(entries: Sequence[Mapping[str, Any]]) -> Table:
    table = table_of("class", "draft")
    for name in ("prompts", "tok/s", "plain", "ratio", "end to\nend", "tokens\nper pass"):
        table.add_column(name, justify="right")
    for class_, entry in _without_repeats(entries):
        table.add_row(
            class_,
            entry["draft"],
            str(entry["prompts"]),
            f"{entry['tok_s']:.1f}",
            f"{entry['plain_tok_s']:.1f}",
            f"{entry['ratio']:.2f}",
            f"{entry['end_to_end_ratio']:.2f}",
            f"{entry['tokens_per_pass']:.2f}",
        )
    return table


def _time_table(entries: Sequence[Mapping[str, Any]]) -> Table:
    table = table_of("class", "draft")
    for name in ("draft", "verify", "rest", "pass"):
        table.add_column(f"{name}\nms", justify="right")
    table.add_column(f"accepted %\ndepth 1, 2, ... {SHOWN_DEPTHS}")
    for class_, entry in _without_repeats(entries):
        parts = [entry[f"{part}_ms_per_pass"] for part in ("draft", "verify", "other")]
        shares = entry["acceptance"][:SHOWN_DEPTHS]
        table.add_row(
            class_,
            entry["draft"],
            *(f"{part:.2f}" for part in (*parts, sum(parts))),
            " ".join("  -" if share is None else f"{100 * share:3.0f}" for share in shares),
        )
    return table


def table_of(*columns: str) -> Table:
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False)


def _without_repeats(
    entries: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each entry with its class, which is empty where it is that of the entry before."""
    before = None
    for entry in entries:
        yield ("" if entry["class"] == before else entry["class"]), entry
        before = entry["class"]


def show_serving(result: Mapping[str, Any]) -> None:
    """Print what a server gave to several requests at once."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    settings = result["settings"]
    console.print(
        f"{result['model']}, {settings['max_tokens']} tokens, temperature "
        f"{settings['temperature']:g}"
    )
    table = table_of("at once", "draft")
    for name in ("tok/s", "against\nnone", "first token\nms p50", "p95", "between\nms p50", "p95"):
        table.add_column(name, justify="right")
    plain = {e["concurrent"]: e["tok_s"] for e in result["serving"] if e["draft"] == "none"}
    for entry in sorted(result["serving"], key=lambda e: (e["concurrent"], e["draft"] != "none")):
        first, between = entry["first_token_ms"], entry["between_tokens_ms"]
        base = plain[entry["concurrent"]]
        table.add_row(
            str(entry["concurrent"]),
            entry["draft"],
            f"{entry['tok_s']:.1f}",
            f"{entry['tok_s'] / base:.2f}" if base else "-",
            *("-" if value is None else f"{value:.1f}"
              for value in (first["p50"], first["p95"], between["p50"], between["p95"])),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"{result['comparisons']} answers compared with those without drafts: "
        f"{len(result['differences'])} differ"
    )


def check_outputs(json: str | None, plot: str | None = None) -> None:
    """Raise UsageError when figures could not go to --json or --plot: measuring takes minutes."""
    if json == "" or plot == "":
        raise UsageError(f"--{'json' if json == '' else 'plot'} is empty; give a file's path")
    if json is not None and json != "-":
        check_replaceable(Path(json))
    if plot is not None:
        if Path(plot).suffix.lower() != ".png":
            raise UsageError(f"--plot is {plot!r}; a picture is a PNG, so its name ends in .png")
        check_plot()
        check_replaceable(Path(plot))


def deliver(
    result: Mapping[str, Any], json: str | None, show: Callable[[Mapping[str, Any]], None]
) -> None:
    """Show the figures, or print them as JSON if it is to go to "-"; write the file of --json."""
    if json == "-":
        print_json(result)
        return
    show(result)
    if json is not None:
        with replacing(Path(json)) as place:
            place.write_text(dumps(jsonable(result), indent=1, allow_nan=False) + "\n", "utf-8")
