"""CLRS-Text: a language model that learns algorithms from text, and sizes it never saw."""
