"""Reliability: attention against an oracle on random problems, and tests against planted bugs."""
