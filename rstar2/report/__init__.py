"""Makes one HTML page of a run (numbers, plots, every trace) that needs no server and no network."""

from rstar2.report.page import write_report

__all__ = ["write_report"]
