"""Report of a diagnosis."""
