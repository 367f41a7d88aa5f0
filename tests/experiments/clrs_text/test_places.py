from __future__ import annotations

import torch

from experiments.clrs_text.data import Encoder
from experiments.clrs_text.model import prepared
from experiments.clrs_text.places import Place, PlaceEmbedding, place_number, places_of
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import example

_SMALL = Recipe({"quicksort": (4, 6)}, layers=2, heads=2, width=32, hidden=32)


def test_rows_and_columns_of_a_matrix() -> None:
    encoder = Encoder.of(Recipe({"bfs": (4, 6)}))
    one = example("bfs", 5, seed=0)
    texts = [encoder.tokenizer.vocabulary[token] for token in encoder(one).tokens]
    found = [
        (place.row, place.place)
        for text, place in zip(texts, places_of(texts, characters=False), strict=True)
        if text.strip().isdigit() and place.row
    ]
    assert found == [(row, place) for row in range(1, 6) for place in range(2, 7)]


def test_characters_of_numbers_are_counted_alike_with_a_space_or_without() -> None:
    text = "[0.25 0.3 1.0]"
    points = [
        place
        for character, place in zip(text, places_of(text, characters=True), strict=True)
        if character == "."
    ]
    assert points == [Place(0, 2, 2), Place(0, 3, 2), Place(0, 4, 2)]


def test_vectors_of_a_place_add_up_and_no_place_adds_nothing() -> None:
    tables = [torch.randn(*shape) for shape in ((130, 3), (130, 3), (7, 3))]
    embedding = PlaceEmbedding(*tables)
    places = [Place(), Place(0, 5, 0), Place(2, 5, 6)]
    found = embedding(torch.tensor([[place_number(place) for place in places]]))[0]
    rows, of_lists, characters = tables
    assert not found[0].any()
    assert torch.allclose(found[1], of_lists[5])
    assert torch.allclose(found[2], rows[2] + of_lists[5] + characters[6])
    assert not embedding.state_dict()


def test_an_index_is_given_by_the_embedding_of_the_integer() -> None:
    model, encoder = prepared(_SMALL, 0)
    token = encoder.tokenizer.vocabulary.index("7")
    embeddings = model.get_input_embeddings().weight
    # Before the number with index 7 are a bracket and seven others.
    assert torch.equal(2 * model.places.places[9], embeddings[token])
    assert not embeddings.requires_grad
    assert (
        prepared(Recipe(**{**_SMALL.to_dict(), "fixed": False}), 0)[0]
        .get_input_embeddings()
        .weight.requires_grad
    )
