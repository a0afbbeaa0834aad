"""A run's folder as one static page that needs no network."""

from rstar2.report.page import write_report

__all__ = ["write_report"]
