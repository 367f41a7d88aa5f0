"""Results that are saved as sealed JSON files."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from sharpmax._files import DamagedFileError, read_sealed, write_sealed


class Saved(ABC):
    """A result with `save` and `load`, `to_dict` and `from_dict`, and `to_json`."""

    FORMAT: ClassVar[str]
    """Kind and version of the file, such as "sharpmax diagnosis 2"."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, without NaN and infinity."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make a result from what `to_dict` returned.

        Raises:
            KeyError, TypeError, ValueError: the data do not fit.
        """

    def to_json(self) -> str:
        """Return the result as a JSON string."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def save(self, path: str | Path) -> Path:
        """Write the result as a sealed JSON file, whole or not at all.

        Returns:
            The path.

        Raises:
            ValueError: the result contains NaN or infinity.
        """
        return write_sealed(path, self.FORMAT, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote.

        Raises:
            DamagedFileError: the file is truncated, was edited, or has another format.
        """
        data = read_sealed(path, cls.FORMAT)
        del data["kind"]
        try:
            return cls.from_dict(data)
        except (LookupError, OverflowError, TypeError, ValueError) as error:
            raise DamagedFileError(
                f"{path}: expected a {cls.__name__.lower()}, got data that do not fit ({error}); "
                "run the command that made it again"
            ) from None
