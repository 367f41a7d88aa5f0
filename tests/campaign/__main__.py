"""Run a campaign and print what was wrong."""

from __future__ import annotations

import argparse
import json
import sys

import torch

from campaign.cases import KINDS, make_case
from campaign.compare import check


def main() -> None:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--impl", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for kind in given.kinds:
        rows = undecided = 0
        for index in range(given.first, given.first + given.cases):
            outcome = check(make_case(kind, given.seed, index), given.impl)
            rows, undecided = rows + outcome.rows, undecided + outcome.undecided
            if outcome.wrong:
                failed += 1
                print(json.dumps({"reason": outcome.reason, **outcome.case}))
        print(f"{kind}: {given.cases:,} cases, {rows:,} compared, {undecided:,} undecided")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
