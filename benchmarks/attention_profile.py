"""Where the time of attention goes; writes results/attention/profile.json, half a minute."""

from pathlib import Path

from sharpmax.lab.attention_profile import attention_profile
from sharpmax.lab.results import write_json

if __name__ == "__main__":
    root = Path(__file__).parent.parent
    write_json(root / "results/attention/profile.json", attention_profile())
