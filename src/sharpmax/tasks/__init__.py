"""Questions about long prompts: passkey, key-value retrieval and maximum.

`sharpmax.evaluate` and `sharpmax.calibrate` use these tasks. They work with any tokenizer that can
encode text, and need NumPy alone.
"""

from sharpmax.tasks._key_value import key_value
from sharpmax.tasks._maximum import maximum, maximum_of_length, maximum_prompt
from sharpmax.tasks._passkey import passkey
from sharpmax.tasks._questions import SEEN, UNSEEN, Question, Tokenizer, own_source, start_tokens

__all__ = [
    "SEEN",
    "UNSEEN",
    "Question",
    "Tokenizer",
    "key_value",
    "maximum",
    "maximum_of_length",
    "maximum_prompt",
    "own_source",
    "passkey",
    "start_tokens",
]
