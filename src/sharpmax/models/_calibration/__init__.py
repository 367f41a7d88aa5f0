"""Find which heads of a model to change, and by how much."""
