"""The report page of a run, and the same numbers as JSON."""

from etude.report.collect import collect
from etude.report.data import ReportData, as_json
from etude.report.page import render, write_report

__all__ = ["ReportData", "as_json", "collect", "render", "write_report"]
