"""Report of calibrations and their evaluation."""
