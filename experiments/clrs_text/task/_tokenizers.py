"""Two tokenizers for CLRS-Text: one token per character, and one token per number.

Both reproduce every text exactly. They differ in the number of tokens per number.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from experiments.clrs_text.task._generator import DECIMALS

__all__ = ["Characters", "Numbers"]

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_PAD, _EOS = "<pad>", "<eos>"
_SIGNS = "\n (),-.:[]_|"
# Names of algorithms, inputs and outputs.
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
    r"""One token per character.

    Attributes:
        vocabulary: The text of each token; the first two are special.
        pad: Id of the padding token.
        eos: Id of the token that ends a text.

    Example:
        >>> tokenizer = Characters()
        >>> tokens = tokenizer.encode("min: 0.25")
        >>> len(tokens), tokenizer.decode([*tokens, tokenizer.eos])
        (9, 'min: 0.25')
        >>> len(tokenizer)
        76
    """

    name = "characters"
    # Pattern of a token.
    _token = r"[\s\S]"

    def __init__(self) -> None:
        self._fill([*_SIGNS, *string.digits, *string.ascii_letters])

    def _fill(self, tokens: Sequence[str]) -> None:
        self.vocabulary = (_PAD, _EOS, *tokens)
        self.pad, self.eos = 0, 1
        self._numbers = {token: number for number, token in enumerate(self.vocabulary)}
        self._find = re.compile(self._token).findall

    def __len__(self) -> int:
        """Return the size of the vocabulary."""
        return len(self.vocabulary)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Convert text to token ids.

        Args:
            text: A question, an answer, or both.
            add_special_tokens: Whether to append the token that ends a text.

        Returns:
            The ids.

        Raises:
            ValueError: A part of the text is not in the vocabulary.
        """
        try:
            tokens = [self._numbers[token] for token in self._find(text)]
        except KeyError as error:
            raise ValueError(
                f"text: expected tokens of {type(self).__name__}, got {error.args[0]!r}"
            ) from error
        return [*tokens, self.eos] if add_special_tokens else tokens

    def decode(self, token_ids: Sequence[int]) -> str:
        """Convert token ids to text, without special tokens."""
        return "".join(
            self.vocabulary[token] for token in token_ids if token not in (self.pad, self.eos)
        )

    def to_transformers(self) -> Any:
        """Return the same tokenizer for transformers, for instance for lm-evaluation-harness.

        Returns:
            A `PreTrainedTokenizerFast` with the same token ids.
        """
        tokenizer: Any = Tokenizer(WordLevel(self._numbers))
        tokenizer.pre_tokenizer = Split(Regex(self._token), behavior="isolated")
        tokenizer.decoder = Fuse()
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=tokenizer,
            pad_token=_PAD,
            eos_token=_EOS,
            clean_up_tokenization_spaces=False,
        )


class Numbers(Characters):
    r"""One token per number, and one per character of everything else.

    Numbers with a decimal point are multiples of 0.001; all others are integers. A text with a
    number outside the ranges is refused, so that every number is one token.

    Args:
        decimals: The range of decimals. Convex hulls need (-2, 2), the maximum subarray (-1, 1),
            everything else (0, 1).
        integers: The range of integers. Indices and deadlines go up to the length, and -1 marks
            what does not apply.
        words: Whether names in questions are tokens too, and the token of a number includes the
            space before it, as in tokenizers of language models. This halves the number of tokens.

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
        # Truncation keeps the sign.
        fractions += ["-0.0"] if first < 0 else []
        numbers = [*fractions, *map(str, range(integers[0], integers[1] + 1))]
        names: list[str] = []
        if words:
            numbers += [f" {number}" for number in numbers]
            names = _WORDS.split()
            whole = "|".join(f"(?<![A-Za-z_]){word}(?![A-Za-z_])" for word in names)
            self._token = rf" ?{_NUMBER}|{whole}|[\s\S]"
        self._fill([*_SIGNS, *string.ascii_letters, *names, *numbers])
