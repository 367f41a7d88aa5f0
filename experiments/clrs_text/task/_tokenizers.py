"""Two tokenizers for CLRS-Text: by characters, and with one token for each number.

Both give every text back exactly, so they carry the same information; they differ in how many
tokens a number has.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

from experiments.clrs_text.task._generator import DECIMALS
from sharpmax._extras import require

__all__ = ["Characters", "Numbers"]

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_PAD, _EOS = "<pad>", "<eos>"
_SIGNS = "\n (),-.:[]_|"
# Names of algorithms, of their inputs and of what they give.
_WORDS = """
Pi activity_selector articulation_points bellman_ford best_high best_low bfs binary_search bridges
bubble_sort dag_shortest_paths dfs dijkstra end find_maximum_subarray_kadane floyd_warshall
graham_scan heapsort high in_hull in_mst initial_trace insertion_sort intersect is_bridge is_cut
jarvis_march key kmp_matcher lcs_length low match matrix_chain_order median min minimum mst_kruskal
mst_prim naive_string_matcher optimal_bst pi pivot pred quickselect quicksort return root scc_id
segments_intersect selected start string strongly_connected_components target task_scheduling topo
topo_head topological_sort trace
"""


class Characters:
    r"""One token for each character.

    Attributes:
        vocabulary: The text of each token; the first two are special and never written.
        pad: Number of the token that fills up.
        eos: Number of the token that ends a text.

    Example:
        >>> tokenizer = Characters()
        >>> tokens = tokenizer.encode("min: 0.25")
        >>> len(tokens), tokenizer.decode([*tokens, tokenizer.eos])
        (9, 'min: 0.25')
        >>> len(tokenizer)
        76
    """

    name = "characters"
    # What is a token, as far as it goes: here any character.
    _token = r"[\s\S]"

    def __init__(self) -> None:
        self._fill([*_SIGNS, *string.digits, *string.ascii_letters])

    def _fill(self, tokens: Sequence[str]) -> None:
        self.vocabulary = (_PAD, _EOS, *tokens)
        self.pad, self.eos = 0, 1
        self._numbers = {token: number for number, token in enumerate(self.vocabulary)}
        self._find = re.compile(self._token).findall

    def __len__(self) -> int:
        """How many tokens there are."""
        return len(self.vocabulary)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Text to numbers of tokens.

        Args:
            text: A question, an answer, or both.
            add_special_tokens: Whether to add the token that ends a text.

        Returns:
            The numbers.

        Raises:
            ValueError: Something in the text is not a token.
        """
        try:
            tokens = [self._numbers[token] for token in self._find(text)]
        except KeyError as error:
            raise ValueError(
                f"text: expected what {type(self).__name__} has tokens for, got {error.args[0]!r}"
            ) from error
        return [*tokens, self.eos] if add_special_tokens else tokens

    def decode(self, token_ids: Sequence[int]) -> str:
        """Numbers of tokens to text, special ones left out."""
        return "".join(
            self.vocabulary[token] for token in token_ids if token not in (self.pad, self.eos)
        )

    def to_transformers(self) -> Any:
        """The same tokenizer for transformers, for instance for lm-evaluation-harness.

        Returns:
            A `PreTrainedTokenizerFast` with the same numbers of tokens.

        Raises:
            MissingExtraError: transformers is not installed.
        """
        what = "a tokenizer for transformers"
        library = require("tokenizers", extra="models", what=what)
        transformers = require("transformers", extra="models", what=what)
        tokenizer = library.Tokenizer(library.models.WordLevel(self._numbers))
        tokenizer.pre_tokenizer = library.pre_tokenizers.Split(
            library.Regex(self._token), behavior="isolated"
        )
        tokenizer.decoder = library.decoders.Fuse()
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token=_PAD,
            eos_token=_EOS,
            clean_up_tokenization_spaces=False,
        )


class Numbers(Characters):
    r"""One token for each number, and one for each character of everything else.

    A number with a decimal point is one of steps of 0.001; all others are integers. Outside of the
    ranges there are no tokens for numbers, and a text with one is refused: no number has two.

    Args:
        decimals: The range of numbers with a decimal point. Convex hulls need the whole, a largest
            sum (-1, 1), everything else (0, 1).
        integers: The range of integers. Indices and deadlines go up to the length, and -1 marks
            what does not apply.
        words: Whether the names in questions are tokens too, and a number takes the space in front
            of it into its token, as tokenizers of language models do: half as many tokens.

    Example:
        >>> tokenizer = Numbers()
        >>> tokens = tokenizer.encode("key: [0.25 -0.714], s: 12")
        >>> [tokenizer.vocabulary[token] for token in tokens[5:15]]
        ['[', '0.25', ' ', '-0.714', ']', ',', ' ', 's', ':', ' ']
        >>> len(tokenizer), len(Numbers(decimals=(0, 1), integers=(-1, 63)))
        (5093, 1132)
        >>> tokenizer = Numbers(words=True)
        >>> [tokenizer.vocabulary[token] for token in tokenizer.encode("key: [0.25 -0.714], s: 12")]
        ['key', ':', ' ', '[', '0.25', ' -0.714', ']', ',', ' ', 's', ':', ' 12']
    """

    name = "numbers"
    _token = rf"{_NUMBER}|[\s\S]"

    def __init__(
        self,
        *,
        decimals: tuple[float, float] = (-2, 2),
        integers: tuple[int, int] = (-1, 1023),
        words: bool = False,
    ) -> None:
        steps = 10**DECIMALS
        first, last = (round(bound * steps) for bound in decimals)
        fractions = [str(step / steps) for step in range(first, last + 1)]
        # Cutting decimals off leaves the sign.
        fractions += ["-0.0"] if first < 0 else []
        numbers = [*fractions, *map(str, range(integers[0], integers[1] + 1))]
        names: list[str] = []
        if words:
            numbers += [f" {number}" for number in numbers]
            names = _WORDS.split()
            whole = "|".join(f"(?<![A-Za-z_]){word}(?![A-Za-z_])" for word in names)
            self._token = rf" ?{_NUMBER}|{whole}|[\s\S]"
        self._fill([*_SIGNS, *string.ascii_letters, *names, *numbers])
