"""CLRS-Text: the paper's second experiment."""
