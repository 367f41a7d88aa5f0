"""Watch the attention of a model while it trains."""
