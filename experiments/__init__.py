"""The proofs: each folder is one experiment, run by `python -m experiments.<name>`."""
