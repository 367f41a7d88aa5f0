from __future__ import annotations

import json

from experiments.attention_speed.benchmark import BASELINE, Settings
from experiments.attention_speed.profile import attention_profile
from experiments.attention_speed.tables import profile_table


def test_profile_of_a_small_attention() -> None:
    result = attention_profile(length=64, widths=(16, 64), seconds=0.005)
    records = {record["implementation"]: record for record in result["records"]}
    assert {BASELINE, Settings().ours, "sharpmax cpu, statistics"} == records.keys()
    for record in records.values():
        line = record["fixed_seconds"] + 64 * record["seconds_per_width"]
        assert abs(line - record["seconds"]["64"]) < 1e-9  # two points lie on their line
    json.dumps(result, allow_nan=False)
    assert len(profile_table({"command": "run", **result}).rows) == 3
