"""Heads of a model that trains: one run that collapses, one that does not, and the cost."""
