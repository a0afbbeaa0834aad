"""The terminal output of `rstar2 eval` and `rstar2 data agree` before and after sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from rstar2.data.filters.settings import Agreement
from rstar2.eval.run import EvalResult
from rstar2.eval.terminal.live import LiveView
from rstar2.eval.terminal.tables import problems_table, result_tables, settings_lines
from rstar2.terminal import percent

if TYPE_CHECKING:
    from rstar2.eval.plan import EvalPlan


class EvalView(LiveView):
    """Announces the benchmarks and their settings, and prints tables of the results.

    Args:
        out: receives the results.
        err: receives progress and warnings.
        write_report: writes the report page of a run's folder, and returns the path of the page.
        per_problem: whether a table of the problems is also printed.
    """

    def __init__(
        self, out: Console, err: Console, write_report: Callable[[Path], Path], per_problem: bool = False
    ) -> None:
        super().__init__(out, err)
        self._write_report = write_report
        self._per_problem = per_problem

    def announce(self, plan: EvalPlan) -> None:
        """Print the model, the benchmarks and the settings. If several benchmarks have the same settings, the settings
        are printed only once."""
        counts = ", ".join(
            f"{name} ({_problems(len(each.problems))})" for name, each in plan.benchmarks.items()
        )
        place = escape(f"on {plan.opened.name} → {plan.folder}")
        self.out.print(f"[bold]{escape(counts)}[/bold] {place}", soft_wrap=True)
        self._print_dim(f"format: {plan.opened.identity['format']}")
        self.warn(plan.notes)
        left = plan.opened.left_to_server
        inexact = (*plan.opened.identity.get("inexact", ()), *([left] if left else []))
        if inexact:
            self.warn(["the results are not exact:", *(f"- {what}" for what in inexact)])
        protocols = {name: each.settings.protocol() for name, each in plan.benchmarks.items()}
        distinct: list[dict[str, Any]] = []
        for protocol in protocols.values():
            if protocol not in distinct:
                distinct.append(protocol)
        for protocol in distinct:
            named = ", ".join(name for name, own in protocols.items() if own == protocol)
            prefix = f"{named}: " if len(distinct) > 1 else ""
            self._print_dim(prefix + settings_lines(protocol, self.out.width))

    def show_results(self, results: Sequence[EvalResult], folder: Path) -> None:
        for table in result_tables([(result.name, result.summary) for result in results], self.out):
            self.out.print(table)
        if self._per_problem:
            for result in results:
                self.out.print(problems_table(result))
        self.out.print(f"report: {self._write_report(folder)}", markup=False, soft_wrap=True)

    def _print_dim(self, text: str) -> None:
        self.out.print(text, style="dim", markup=False, soft_wrap=True)


class AgreementView(LiveView):
    """Announces the candidate problems, and prints for how many of these problems the model's answer agrees with the
    label."""

    def announce(self, plan: EvalPlan) -> None:
        """Print the number of problems and the model."""
        problems = _problems(sum(len(each.problems) for each in plan.benchmarks.values()))
        self.out.print(f"{problems} on {plan.opened.name} → {plan.folder}", markup=False, soft_wrap=True)
        self.warn(plan.notes)

    def show_results(self, results: Sequence[EvalResult], folder: Path) -> None:
        least = Agreement().least
        for result in results:
            agreed = sum(row["correct"] >= least * row["samples"] for row in result.per_problem)
            whole = "" if result.complete else " so far"
            self.out.print(
                f"{agreed:,} of {_problems(len(result.per_problem))}{whole} have the label's answer in at "
                f"least {percent(least)} of their samples. To keep only these problems: --agree {folder}",
                markup=False,
                soft_wrap=True,
            )


def _problems(count: int) -> str:
    return f"{count} problem{'s' * (count != 1)}"
