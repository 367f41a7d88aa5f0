"""The way into any PyTorch module, through the functions of attention that it calls."""
