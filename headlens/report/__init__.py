"""Reports for people: one page that needs no network, and a short form for notebooks. No torch here."""

from headlens.report.html import render_report, render_summary, write_report

__all__ = ["render_report", "render_summary", "write_report"]
