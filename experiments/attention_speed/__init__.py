"""How fast `sharpmax.attention` is beside its peers."""
