"""A run in a folder: refused if it would overwrite, checked and continued if it is resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from experiments.common.records import OverSeeds, RecordTable
from sharpmax._files import check_settings, read_sealed, refuse_earlier, write_sealed

__all__ = ["Settings", "Study"]

Table = TypeVar("Table", bound=RecordTable[Any])


class Settings(Protocol):
    """What all trainings and tests of a run have in common."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the trainings."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as it comes back from JSON."""


class Study(Generic[Table]):
    """Run an experiment in a folder; the run can be stopped at any moment and resumed.

    The folder holds `table.json`, which grows arm by arm, and `weights/`.

    Args:
        folder: Folder of the run.
        settings: What all trainings and tests have in common.
        command: The command that makes this run.
        table: Class of the table.
        resume: Continue the run in the folder. Without it, a folder with a run is refused.

    Raises:
        FileExistsError: The folder holds a run, and `resume` is false.
        SettingsChangedError: The folder holds a run with other settings.
        DamagedFileError: The table in the folder is truncated or was edited.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        command: str,
        table: type[Table],
        *,
        resume: bool = False,
    ) -> None:
        self.folder = folder
        self.command = command
        self._settings = settings.to_dict()
        self.table = table(command, settings.seeds, {}, (), settings=self._settings)
        if not resume and (self.table_path.exists() or (folder / "weights").exists()):
            refuse_earlier(folder)
        self._read()

    @property
    def table_path(self) -> Path:
        """File of the table."""
        return self.folder / "table.json"

    def has(self, recipes: Mapping[str, Mapping[str, Any]]) -> bool:
        """Tell whether the table has these recipes.

        Raises:
            SettingsChangedError: A recipe in the table differs from the one given.
        """
        for name in recipes.keys() & self.table.recipes.keys():
            check_settings(self.table.recipes[name], recipes[name], self.table_path)
        return recipes.keys() <= self.table.recipes.keys()

    def add(
        self,
        recipes: Mapping[str, dict[str, Any]],
        records: Iterable[OverSeeds],
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Add recipes and records to the table and write it.

        The file is read again first, so that several processes can add to one table.

        Args:
            recipes: How models were trained: plain data by name.
            records: What was measured.
            notes: Entries for the settings of the table.
        """
        self._read()
        self.table = replace(
            self.table,
            command=_joined(self.table.command, self.command),
            recipes={**self.table.recipes, **recipes},
            records=(*self.table.records, *records),
            settings={**self.table.settings, **(notes or {})},
        )
        self.table.save(self.table_path)

    def kept(self, path: Path, kind: str, make: Callable[[], Any]) -> Any:
        """Return a partial result, from its file if there is one.

        Args:
            path: File of the result. It also holds the settings of the run, which must match.
            kind: What the result is, and in which format.
            make: Makes the result: plain data.

        Raises:
            SettingsChangedError: The file is from a run with other settings.
            DamagedFileError: The file is truncated or was edited.
        """
        if not path.exists():
            write_sealed(path, kind, {"settings": self._settings, "result": make()})
        data = read_sealed(path, kind)
        check_settings(data["settings"], self._settings, path)
        return data["result"]

    def _read(self) -> None:
        """Take over the table in the folder, also what another process has added to it."""
        if self.table_path.exists():
            before = type(self.table).load(self.table_path)
            check_settings(before.settings, self._settings, self.table_path)
            self.table = replace(
                self.table,
                command=before.command,
                recipes=before.recipes,
                records=before.records,
                settings=before.settings,
            )


def _joined(before: str, command: str) -> str:
    """Join the commands that make a table, in order.

    Example:
        >>> _joined("run a && run b --resume", "run c")
        'run a && run b --resume && run c --resume'
        >>> _joined("run a", "run a")
        'run a'
    """
    known = [each.removesuffix(" --resume") for each in before.split(" && ")]
    return before if command in known else f"{before} && {command} --resume"
