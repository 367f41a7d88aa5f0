from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.reliability import campaign as campaigns
from experiments.reliability import run as runs
from experiments.reliability.__main__ import app
from experiments.reliability.campaign import Campaign
from experiments.reliability.cases import make_case
from experiments.reliability.compare import Outcome, check
from experiments.reliability.tables import kinds_table, worst_table
from sharpmax import kernels
from sharpmax._files import SettingsChangedError


def test_a_resumed_campaign_is_an_undisturbed_one(tmp_path: Path) -> None:
    whole, path = Campaign(3), tmp_path / "campaign.json"
    list(whole.advance(16))
    first = Campaign(3)
    list(first.advance(9))
    first.save(path, "run")
    second = Campaign.resume(path, 3)
    assert second.instructions == [kernels.instructions()]
    assert f"seed 3, kernels {kernels.instructions()}." in kinds_table(second).caption
    list(second.advance(16))
    assert second == whole
    with pytest.raises(SettingsChangedError, match="seed 3, not 4"):
        Campaign.resume(path, 4)


def test_the_command_goes_on_and_tells_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def invoke(*arguments: str) -> tuple[int, str]:
        words = ["run", "--seed", "3", "--output", str(tmp_path), *arguments]
        result = CliRunner().invoke(app, words)
        return result.exit_code, result.output

    monkeypatch.setattr(runs, "_SAVED", 4)
    assert invoke("--cases", "6")[0] == 0
    assert Campaign.load(tmp_path / "campaign.json").done == 6
    assert (tmp_path / "campaign.png").exists()
    assert invoke("--cases", "8")[0] == 1  # it holds an earlier run
    check = campaigns.check
    monkeypatch.setattr(
        campaigns, "check", lambda _, names: {name: Outcome(5, 2, reason="odd") for name in names}
    )
    code, output = invoke("--cases", "7", "--resume")
    assert code == 1
    assert '"reasons": {"cpu": "odd"}' in output
    campaign = Campaign.load(tmp_path / "campaign.json")
    assert (campaign.done, list(campaign.wrong), campaign.mended) == (7, ["6"], {})
    monkeypatch.setattr(campaigns, "check", check)
    assert invoke("--cases", "7", "--resume")[0] == 0  # it tries the wrong one again
    campaign = Campaign.load(tmp_path / "campaign.json")
    assert (campaign.done, campaign.wrong, list(campaign.mended)) == (7, {}, ["6"])
    mended, whole = campaign.tallies, Campaign(3)
    list(whole.advance(7))
    assert mended == whole.tallies


def test_chosen_implementations_take_every_case(tmp_path: Path) -> None:
    words = ["run", "--seed", "3", "--cases", "3", "--output", str(tmp_path)]
    result = CliRunner().invoke(app, [*words, "--impl", "reference"])
    assert result.exit_code == 0, result.output
    campaign = Campaign.load(tmp_path / "campaign.json")
    tried = {name for kind in campaign.tallies.values() for name in kind}
    assert (campaign.done, tried) == (3, {"reference"})
    with pytest.raises(SettingsChangedError, match="reference"):
        Campaign.resume(tmp_path / "campaign.json", 3)
    assert "expected one of" in CliRunner().invoke(app, [*words, "--impl", "cuda"]).output


@pytest.mark.parametrize("index", [70912, 114519])
def test_what_a_precision_cannot_decide_is_not_wrong(index: int) -> None:
    # A float16 bias that 1,176 rows share, and an EntropyTarget that many betas meet.
    outcome = check(make_case(21, index), ["cpu"])["cpu"]
    assert outcome.rows > 0
    assert outcome.wrong == 0


def test_tables() -> None:
    campaign = Campaign(3)
    assert not list(campaign.advance(12))
    table = kinds_table(campaign)
    assert sum(int(row[2]) for row in table.rows if row[1] == "`cpu`") == 12
    assert worst_table(campaign).rows
