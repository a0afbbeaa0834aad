"""The demo's static page: the phases as a table, and figure 4 of the paper drawn from the run."""

from __future__ import annotations

import io
import os
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2.demo.curves import Curve, curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROC_COLOUR, PLAIN_COLOUR = "#1f6feb", "#d97706"


def write_page(run: Path, summary: dict[str, Any]) -> Path:
    """Write `report.html`, one file that needs no network, and its plot alone as `figure4.svg`.

    Returns:
        The file.
    """
    from jinja2 import Environment

    arms = {"GRPO-RoC": (curve(run), ROC_COLOUR)}
    if "plain_grpo" in summary:
        arms["plain GRPO"] = (curve(run / "plain"), PLAIN_COLOUR)
    steps_svg = _steps_figure(arms)
    _write_whole(run / "figure4.svg", steps_svg)
    template = files("rstar2.demo").joinpath("page.html").read_text(encoding="utf-8")
    text = (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            summary=summary,
            arms=_tables(summary),
            phases_svg=_phases_figure(summary),
            steps_svg=steps_svg,
            run=run,
        )
    )
    page = run / "report.html"
    _write_whole(page, text)
    return page


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _tables(summary: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    arms = [("GRPO-RoC", summary["phases"])]
    if "plain_grpo" in summary:
        arms.append(("plain GRPO, same budget, same SFT model", summary["plain_grpo"]))
    return arms


def _steps_figure(arms: dict[str, tuple[Curve, str]]) -> str:
    """Failed calls in correct traces, pass rate and length against steps."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    panels = (
        ("Failed calls in correct traces, %", "failed", 100.0),
        ("Pass rate of the rollouts, %", "pass_rate", 100.0),
        ("Tokens a rollout", "tokens", 1.0),
    )
    for axis, (title, field, scale) in zip(axes, panels, strict=True):
        for name, (values, colour) in arms.items():
            _draw(axis, values, field, scale, name, colour)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False, fontsize=9)
    return _svg(figure)


def _draw(axis: Axes, values: Curve, field: str, scale: float, name: str, colour: str) -> None:
    raw = [scale * value for value in getattr(values, field)]
    smooth = [scale * value for value in getattr(values.smoothed(), field)]
    axis.plot(values.steps, raw, color=colour, alpha=0.25, linewidth=1)
    axis.plot(values.steps, smooth, color=colour, linewidth=2, label=name)
    for start in values.starts[1:]:
        axis.axvline(start - 0.5, color="#888888", linewidth=0.6, linestyle=":")


def _phases_figure(summary: dict[str, Any]) -> str:
    """Held-out accuracy after each phase, with its interval."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for (name, phases), colour, shift in zip(
        _tables(summary), (ROC_COLOUR, PLAIN_COLOUR), (-0.06, 0.06), strict=False
    ):
        places = [i + shift for i in range(len(phases))]
        middle = [100 * phase["accuracy"] for phase in phases]
        below = [100 * (phase["accuracy"] - phase["interval"][0]) for phase in phases]
        above = [100 * (phase["interval"][1] - phase["accuracy"]) for phase in phases]
        axis.errorbar(
            places, middle, yerr=[below, above], fmt="o-", capsize=4, color=colour, label=name.split(",")[0]
        )
    axis.set_xticks(range(len(summary["phases"])), [phase["name"] for phase in summary["phases"]])
    axis.set_ylim(0, 100)
    axis.set_title("Accuracy on held-out problems, % (95 % interval, by problem)", fontsize=10)
    axis.legend(frameon=False, fontsize=9, loc="lower right")
    return _svg(figure)


def _svg(figure: Any) -> str:
    import matplotlib.pyplot as plt

    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]
