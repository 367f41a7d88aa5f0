from __future__ import annotations

from sharpmax.tasks import own_source


def test_it_is_whole_and_the_same_each_time() -> None:
    text = own_source()
    assert len(text) > 200_000
    assert text == own_source()
    # In the order of names.
    assert text.index("`python -m sharpmax` is the command") < text.index("Lemma 2.1 of")
