"""What attention over ranks sends, how long that should take, and how long it takes with gloo."""
