"""The report of a calibration and its evaluation."""
