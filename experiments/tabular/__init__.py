"""Tables: how much does a frozen in-context learner gain from sharper attention beyond its size?"""
