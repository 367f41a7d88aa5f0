"""Time how fast the explorer reacts, in headless Chromium.

    python scripts/time_explorer.py [WIDTH]

One reaction is all that follows a change: the numbers of nine rules at n and at 37 lengths, charts,
tables and layout; painting is not part of it. "length" moves n alone, "shape" the spread as well,
after which every length has to be computed anew.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from sharpmax.report.explorer import explorer_html

CHANGES = 60
LENGTHS = (16_384, 1_048_576)
CODE = """
const times = {};
for (const n of %s) for (const kind of ["length", "shape"]) {
  times[`${kind} ${n}`] = Array.from({ length: %d }, (_, k) => {
    state.row.n = n - k;
    if (kind === "shape") state.row.spread = 5 + k / 10;
    const begin = performance.now();
    update();
    document.body.getBoundingClientRect();
    return performance.now() - begin;
  });
}
document.body.append(element("pre", { id: "times" }, JSON.stringify(times)));
"""


def main(width: str = "1300") -> None:
    """Print the median and the largest time of each kind of change."""
    names = ("chromium", "chromium-browser", "chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        sys.exit("expected Chromium on this machine, found none: apt-get install chromium")
    head, module = explorer_html().rsplit("start();\n</script>", 1)
    code = CODE % (json.dumps(LENGTHS), CHANGES)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(f"{head}start();\n{code}</script>{module}", encoding="utf-8")
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            f"--user-data-dir={folder}/profile", f"--window-size={width},1000", page.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r'<pre id="times">(.*?)</pre>', done.stdout)
    assert found is not None, "the page did not run"
    for name, times in json.loads(html.unescape(found[1])).items():
        kind, n = name.split()
        middle, most = statistics.median(times), max(times)
        print(f"n = {int(n):9,}  {kind}  median {middle:5.1f} ms  largest {most:5.1f} ms")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
