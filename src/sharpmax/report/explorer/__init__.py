"""The explorer: a page to try rules on rows of logits, and to look at the heads of a diagnosis."""

from sharpmax.report.explorer.page import explorer_html, write_explorer

__all__ = ["explorer_html", "write_explorer"]
