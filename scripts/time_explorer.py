"""Time how fast the explorer reacts, in headless Chromium, on a desktop and as on a phone.

    python scripts/time_explorer.py [--diagnosis FILE] [--output FILE]

One reaction is what follows a change at once: the numbers of the rules at n and at 37 lengths, the
charts and tables that are on the screen, and layout; painting is not part of it. "length" moves n
alone, "shape" the spread as well, after which every length has to be computed anew. "settled" is
the same for the whole page, which follows when no setting has changed for a quarter of a second.
The phone has a screen of 390 by 844 points, and Chromium slows its processor down by a factor of
four.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from sharpmax._files import machine, versions, write_sealed
from sharpmax.report.explorer import write_explorer

CHANGES = 60
LENGTHS = (16_384, 1_048_576)
DEVICES = {"desktop": (1300, 1000, False, 1), "phone": (390, 844, True, 4)}
CODE = """
const times = {};
for (const n of %s) for (const kind of ["length", "shape", "settled"]) {
  times[`${kind} ${n}`] = Array.from({ length: %d }, (_, k) => {
    state.row.n = n - k;
    if (kind !== "length") state.row.spread = 5 + k / 10;
    const begin = performance.now();
    update(kind === "settled" ? EVERYWHERE : onScreen);
    document.body.getBoundingClientRect();
    return performance.now() - begin;
  });
}
return times;
"""
# The page has started, and has been told which sections are on the screen.
READY = """(async () => {
  while (!window.timed?.ready()) await new Promise(requestAnimationFrame);
})()"""


class Browser:
    """A headless Chromium, spoken to through two pipes."""

    def __init__(self, profile: str) -> None:
        names = ("chromium", "chromium-browser", "chrome")
        chromium = next(filter(None, map(shutil.which, names)), None)
        if chromium is None:
            sys.exit("expected Chromium on this machine, found none: apt-get install chromium")
        words = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
        ]  # fmt: skip
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        command = f"exec {shlex.join(words)} 3<&{read} 4>&{write}"
        self.process = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(read, write), stderr=subprocess.DEVNULL
        )
        os.close(read)
        os.close(write)
        self._answers = os.fdopen(self._read, "rb")
        self._number, self._session = 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._answers.close()
        os.close(self._write)

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == self._number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _next(self) -> bytes:
        found = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                sys.exit("Chromium ended")
            found += byte
        return bytes(found)


def times(page: Path, device: str, profile: str) -> dict[str, list[float]]:
    """Return the milliseconds of every reaction, by kind of change and n."""
    width, height, mobile, slower = DEVICES[device]
    with Browser(profile) as browser:
        browser.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=3 if mobile else 1, mobile=mobile,
        )  # fmt: skip
        browser.call("Emulation.setCPUThrottlingRate", rate=slower)
        browser.call("Page.navigate", url=page.as_uri())
        browser.call("Runtime.evaluate", expression=READY, awaitPromise=True)
        found = browser.call("Runtime.evaluate", expression="timed()", returnByValue=True)
    return found["result"]["value"]  # type: ignore[no-any-return]


def main(diagnosis: str | None = None, output: str | None = None) -> None:
    """Print the median and the largest time of each kind of change; write all times to a file."""
    given, found = None, {}
    if diagnosis is not None:
        from sharpmax.models import Diagnosis

        given = Diagnosis.load(diagnosis)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = write_explorer(Path(folder) / "page.html", given)
        code = CODE % (json.dumps(LENGTHS), CHANGES)
        head, tail = page.read_text(encoding="utf-8").rsplit("start();\n</script>", 1)
        head += f"start();\nwindow.timed = () => {{{code}}};\n"
        head += "window.timed.ready = () => onScreen.size > 0;\n</script>"
        page.write_text(head + tail, encoding="utf-8")
        for device in DEVICES:
            found[device] = times(page, device, f"{folder}/{device}")
            for name, taken in found[device].items():
                kind, n = name.split()
                middle, most = statistics.median(taken), max(taken)
                line = f"median {middle:5.1f} ms  largest {most:5.1f} ms"
                print(f"{device:7}  n = {int(n):9,}  {kind:7}  {line}")  # noqa: T201
        if output is not None:
            with Browser(f"{folder}/version") as browser:
                name = browser.call("Browser.getVersion")["product"]
            ran = {
                "command": shlex.join(["python", "scripts/time_explorer.py", *sys.argv[1:]]),
                "versions": {**versions(()), "browser": name},
                "machine": machine(),
            }
            write_sealed(output, "times of the explorer", {**ran, "times": found})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--diagnosis")
    parser.add_argument("--output")
    main(**vars(parser.parse_args()))
