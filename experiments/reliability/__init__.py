"""Random attention problems against an independent oracle, and damage done on purpose."""
