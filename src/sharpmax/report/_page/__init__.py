"""Tools for reports and figures: HTML pages, styles of figures, tables of text."""
