"""A folded calibration in engines that do not know sharpmax."""
