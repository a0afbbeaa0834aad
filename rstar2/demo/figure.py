"""Figure 4 of the paper, drawn from a run: failed calls, pass rate and length against steps."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2.files import write_text
from rstar2.train.curves import Curve, curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ARMS = (("GRPO-RoC", ".", "#1f6feb"), ("plain GRPO", "plain", "#d97706"))
_PANELS = (
    ("Failed calls in correct traces, %", "failed", 100.0),
    ("Pass rate of the rollouts, %", "pass_rate", 100.0),
    ("Tokens a rollout", "tokens", 1.0),
)


def write_figure(run: Path) -> Path:
    """Write `figure4.svg` to the run's folder and return its path.

    All 2G rollouts of a step count, before RoC selects. Thin lines are single steps, thick ones means of
    several; dotted lines are the starts of stages.
    """
    import matplotlib.pyplot as plt

    arms = [(name, curve(run / folder), colour) for name, folder, colour in _ARMS]
    figure, axes = plt.subplots(1, len(_PANELS), figsize=(12, 3.4), layout="constrained")
    for axis, (title, field, scale) in zip(axes, _PANELS, strict=True):
        for name, values, colour in arms:
            if values.steps:
                _draw(axis, values, field, scale, name, colour)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    axes[0].legend(frameon=False, fontsize=9)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_text(run / "figure4.svg", drawn.getvalue())
    return run / "figure4.svg"


def _draw(axis: Axes, values: Curve, field: str, scale: float, name: str, colour: str) -> None:
    raw = [scale * value for value in getattr(values, field)]
    smooth = [scale * value for value in getattr(values.smoothed(), field)]
    axis.plot(values.steps, raw, color=colour, alpha=0.25, linewidth=1)
    axis.plot(values.steps, smooth, color=colour, linewidth=2, label=name)
    for start in values.starts[1:]:
        axis.axvline(start - 0.5, color="#888888", linewidth=0.6, linestyle=":")
