"""What the experiments share: resumable runs, sealed tables, tests over seeds, and the commands."""
