"""Formats results and comparisons as tables for the terminal.

Names and answers are escaped, because they may contain any text, and rich interprets markup in the cells of a table.
Each table fits into 80 columns. A table's caption explains the numbers that the headings do not explain.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from rstar2.eval.compare import Comparison, Incomplete, ScoreDifference
from rstar2.eval.grader.outcomes import LABELS, Missed
from rstar2.eval.quoted import beside_paper
from rstar2.eval.run import EvalResult
from rstar2.retry import causes_text
from rstar2.terminal import percent


def result_tables(summaries: Sequence[tuple[str, dict[str, Any]]], console: Console) -> list[Table]:
    """Returns all tables of a run's results: the summaries, each benchmark's own scores, and the comparison with the
    paper."""
    scores = [scores_table(name, summary["scores"]) for name, summary in summaries if summary.get("scores")]
    beside = paper_table(summaries)
    return [summaries_table(summaries, console), *scores, *([beside] if beside is not None else [])]


def _table(*columns: Column, caption: str = "", gap: int = 2) -> Table:
    return Table(
        *columns,
        box=None,
        padding=(0, gap, 0, 0),
        title_justify="left",
        title_style="",
        caption=caption or None,
        caption_justify="left",
    )


_NOTES = {
    "avg@n": "avg@n: share of correct samples, averaged over problems.",
    "  95 %": "95 %: intervals of avg@n, either over problems like these or over repeats with the same problems.",
    "maj@n": "maj@n: share of problems whose most frequent answer is correct.",
    "pass@": "pass@k: share of problems with a correct answer among k samples.",
    "avg@n, paper": "paper's reading rule: only answers in the paper's form count.",
    "answers read by rule": "read by rule: number of answers that each rule found in the text.",
    "samples not verified": "not verified: neither correct nor wrong, and counted as not correct in avg@n.",
    "failed calls": "failed calls: share of all tool calls.",
    "failed turns": "failed turns: turns with a failed call.",
}
"""Explanations of a summary's numbers, keyed by the first words of their labels."""


def summaries_table(summaries: Sequence[tuple[str, dict[str, Any]]], console: Console) -> Table:
    """Returns a table of the summaries of benchmarks. A benchmark is given as a pair (name, summary).

    Each benchmark has a column in the table. If the columns do not fit into the console, each benchmark has a row with
    fewer numbers.
    """
    table = _table(gap=3)
    table.add_column("")
    for name, _ in summaries:
        table.add_column(escape(name), justify="right")
    columns = [summary_lines(summary) for _, summary in summaries]
    labels = dict.fromkeys(label for column in columns for label in column)
    for label in labels:
        cells = [column.get(label, "–") for column in columns]
        table.add_row(label, *cells, style="bold" if label == "avg@n" else None)
    table.caption = " ".join(
        note for start, note in _NOTES.items() if any(label.startswith(start) for label in labels)
    )
    if _fits(table, console):
        return table
    return _rows_table([name for name, _ in summaries], columns)


def _fits(table: Table, console: Console) -> bool:
    unbounded = console.options.update(max_width=sys.maxsize)
    return console.measure(table, options=unbounded).maximum <= console.width


_IN_A_ROW = {
    "avg@n": "avg@n",
    "  95 %, over problems": "95 %",
    "problems × samples": "samples",
    "mean tokens": "tokens",
    "calls per sample": "calls",
    "failed calls": "failed",
}
"""Dict from the label of a number to the heading of its column, for the table with a row per benchmark."""


def _rows_table(names: Sequence[str], summaries: Sequence[dict[str, str]]) -> Table:
    table = _table(
        Column("", overflow="fold"),
        caption="avg@n: share of correct samples, averaged over problems, with its 95 % interval over problems. "
        "samples: problems × samples of each. tokens, calls: mean of a sample. failed: share of all tool calls.",
    )
    for heading in _IN_A_ROW.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for name, lines in zip(names, summaries, strict=True):
        table.add_row(escape(name), *(lines.get(label, "–") for label in _IN_A_ROW))
    return table


def summary_lines(summary: dict[str, Any]) -> dict[str, str]:
    """Returns a dict from label to number for a summary. A number is a dash if it does not exist, or if the summary is
    too old to have it."""
    if not summary["samples"]:
        return {"samples": "0"}
    lines = {
        "avg@n": percent(summary["accuracy"]),
        "  95 %, over problems": interval(summary["interval_clustered"]),
        "  95 %, over repeats": interval(summary["interval_run_to_run"]),
        "maj@n": percent(summary["maj@n"]),
    }
    lines |= {f"pass@{k}": percent(value) for k, value in summary["pass@k"].items() if k != "1"}
    lines |= {
        "problems × samples": f"{summary['problems']:,} × {summary['n']}",
        "avg@n, paper's reading rule": percent(summary.get("paper_accuracy")),
    }
    lines |= {f"answers read by rule {rule}": f"{n:,}" for rule, n in summary.get("read_by", {}).items()}
    causes = summary.get("could_not_verify", {})
    lines |= {
        "samples with no answer": percent(summary["no_answer_share"]),
        "samples truncated": percent(summary["truncated_share"]),
        "samples not verified": percent(summary["could_not_verify_share"]),
        **{f"  {LABELS[why]}": f"{causes[why]:,}" for why in get_args(Missed) if why in causes},
        "mean tokens": f"{summary['mean_tokens']:,.0f}",
        "tokens, 95th percentile": f"{summary['p95_tokens']:,.0f}",
        "calls per sample": f"{summary['calls_per_trace']:.2f}",
        "failed calls": percent(summary["failed_call_ratio"]),
        "failed calls in correct samples": percent(summary["failed_call_ratio_correct"]),
        "failed turns repaired later": percent(summary.get("repaired_share")),
        "failed turns in correct samples": percent(summary.get("answered_after_failure_share")),
    }
    if left_out := summary.get("left_out"):
        lines["problems left out"] = f"{left_out:,}"
    if ends := summary.get("format_ends"):
        lines["samples ended by the format"] = f"{ends:,}"
    if filtered := summary.get("content_filtered"):
        lines["samples ended by a filter"] = f"{filtered:,}"
    if refusals := summary.get("refusals"):
        lines["samples refused by the model"] = f"{refusals:,}"
    if summary["lost_calls"]:
        lines["calls that the judge lost"] = f"{summary['lost_calls']:,}"
    return lines


def scores_table(name: str, scores: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns a table of a benchmark's own scores, with the names that its harness uses."""
    table = _table(
        Column(escape(name)), caption="95 %: interval of the score over problems like these.", gap=3
    )
    for heading in ("score", "95 %", "problems"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, score in scores.items():
        table.add_row(
            escape(label), percent(score["value"]), interval(score["interval"]), f"{score['problems']:,}"
        )
    return table


def paper_table(summaries: Sequence[tuple[str, dict[str, Any]]]) -> Table | None:
    """Returns a table of the paper's numbers beside the numbers of this run, or None if the paper has no number for
    these benchmarks."""
    table = _table(
        Column("", overflow="fold"),
        caption="difference: this run minus the paper, in percentage points. 95 %: interval of the number in the "
        "column before.",
    )
    for heading in ("paper", "this run", "95 %", "difference", "95 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in beside_paper(summaries):
        if row.run is None or row.difference is None:
            table.add_row(row.name, percent(row.paper), "–", "–", "–", "–")
            continue
        difference, *ends = row.difference
        table.add_row(
            row.name,
            percent(row.paper),
            percent(row.run.value),
            interval(row.run.interval),
            points(difference),
            point_interval(ends),
        )
    return table if table.row_count else None


def problems_table(result: EvalResult) -> Table:
    """Returns a table with one row per problem of a benchmark."""
    table = _table(
        Column("problem", overflow="fold"),
        caption="correct, no answer, truncated, not verified: numbers of samples. tokens, calls: mean of a sample.",
    )
    table.title = escape(result.name)
    for heading in ("correct", "tokens", "calls", "no answer", "truncated", "not verified"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("gold", overflow="ellipsis", no_wrap=True, max_width=24)
    for row in result.per_problem:
        counts = [str(row[key]) for key in ("no_answer", "truncated", "could_not_verify")]
        table.add_row(
            escape(row["id"]),
            f"{row['correct']}/{row['samples']}",
            f"{row['mean_tokens']:,.0f}",
            f"{row['calls_per_trace']:.1f}",
            *counts,
            escape(row["gold"] or ""),
        )
    return table


def interval(bounds: Sequence[float]) -> str:
    low, high = bounds
    return f"{100 * low:.1f} – {100 * high:.1f} %"


def points(difference: float) -> str:
    """Returns a difference between two shares as text, in percentage points."""
    return f"{100 * difference:+.1f}"


def point_interval(bounds: Sequence[float]) -> str:
    low, high = bounds
    return f"[{points(low)}, {points(high)}]"


def settings_lines(settings: Mapping[str, Any], width: int) -> str:
    """Returns the settings in lines of at most `width` characters. A setting's name and its value are on the same
    line."""
    glue = "\u00a0"  # textwrap breaks no line at this space
    text = " · ".join(f"{key} {value}".replace(" ", glue) for key, value in settings.items())
    return textwrap.fill(text.replace(" ·", f"{glue}·"), width, break_long_words=False).replace(glue, " ")


def comparison_tables(comparisons: Sequence[Comparison], console: Console) -> list[Table]:
    """Returns tables that show, for each benchmark, both averages, their difference with its interval, and which run is
    better.

    There is one table with a row per benchmark. If the console is too narrow for this table, there is one table per
    benchmark.
    """
    together = _comparison_table(comparisons, named=True)
    if _fits(together, console):
        tables = [together]
    else:
        tables = [_comparison_table([each], named=False) for each in comparisons]
    tables[-1].caption = (
        "A, B: avg@n. B - A: difference in percentage points, with its 95 % interval. flipped: problems that only one "
        "of the runs solves in more than half of its samples."
    )
    return tables


def _comparison_table(comparisons: Sequence[Comparison], named: bool) -> Table:
    table = _table()
    if named:
        table.add_column("")
    else:
        table.title = escape("; ".join(each.name for each in comparisons))
    for heading in ("A", "B", "B - A", "95 %", "problems", "flipped"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("shows", no_wrap=True)
    for each in comparisons:
        table.add_row(
            *([escape(each.name)] if named else []),
            percent(each.a),
            percent(each.b),
            points(each.difference),
            point_interval(each.interval),
            str(len(each.pairs)),
            str(len(each.flipped)),
            _shows(each.interval),
            style="bold" if each.excludes_zero else None,
        )
    return table


def incomplete_lines(each: Comparison) -> list[str]:
    """Returns one paragraph for each of the two runs that is incomplete."""
    return [
        f"{each.name}: {run.run} is incomplete, {_missing(run)}. Samples are not missing at random: long "
        "samples fail or are unfinished more often. So the difference may come from the missing samples. To finish "
        f"{run.run}, start its command again."
        for run in each.incomplete
    ]


def _missing(run: Incomplete) -> str:
    if run.missing is None:
        return f"it was stopped after {run.samples:,} samples"
    causes = f"; failed: {causes_text(run.failed)}" if run.failed else ""
    verb = "is" if run.missing == 1 else "are"
    return f"{run.missing:,} of {run.samples + run.missing:,} samples {verb} missing{causes}"


def detectable_line(each: Comparison) -> str:
    """Returns a sentence that says how large a difference this comparison could have found."""
    count = len(each.pairs)
    if each.detectable is None:
        problems = "1 problem is" if count == 1 else f"{count} problems are"
        return f"{each.name}: {problems} too few to find a difference of any size"
    return (
        f"{each.name}: with {count:,} problems like these, a true difference of about {100 * each.detectable:.1f} "
        "points is found in 80 % of comparisons. A smaller difference is found less often."
    )


def _shows(bounds: Sequence[float]) -> str:
    low, high = bounds
    return "B better" if low > 0 else "A better" if high < 0 else "nothing"


def score_differences_table(name: str, scores: Sequence[ScoreDifference]) -> Table:
    """Returns a table of a benchmark's own scores in both runs, with the names that its harness uses."""
    table = _table(
        Column(escape(name)),
        caption="B - A: difference in percentage points, with its 95 % interval.",
    )
    for heading in ("A", "B", "B - A", "95 %", "problems"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("shows", no_wrap=True)
    for each in scores:
        verdict = _shows(each.interval)
        table.add_row(
            escape(each.name),
            percent(each.a),
            percent(each.b),
            points(each.difference),
            point_interval(each.interval),
            f"{each.problems:,}",
            verdict,
            style=None if verdict == "nothing" else "bold",
        )
    return table


MOST_FLIPS = 10
"""Maximum number of flipped problems that the terminal lists."""


def flips_table(each: Comparison) -> Table:
    """Returns a table of the problems that only one run solves in more than half of its samples, with each run's share
    of correct samples. The table has at most the first `MOST_FLIPS` of these problems."""
    table = _table(
        Column(escape(f"{each.name}: flipped problems")),
        caption="A, B correct: share of correct samples.",
        gap=3,
    )
    for heading in ("A correct", "B correct"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for pair in each.flipped[:MOST_FLIPS]:
        table.add_row(
            escape(pair.id), percent(pair.a), percent(pair.b), "gained" if pair.b > pair.a else "lost"
        )
    return table
