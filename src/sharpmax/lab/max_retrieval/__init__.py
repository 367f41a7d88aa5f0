"""The paper's controlled experiment: train a head on sets of at most 16 items, test it on more."""
