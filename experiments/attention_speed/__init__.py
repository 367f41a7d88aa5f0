"""Time `sharpmax.attention` against PyTorch's own attention and other implementations."""
