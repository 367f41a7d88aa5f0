"""Max retrieval: the paper's first experiment."""
