"""Writes the report of a run: one HTML page with numbers, plots and every trace.

The report page needs no server and no network.
"""

from rstar2.report.page import write_report

__all__ = ["write_report"]
