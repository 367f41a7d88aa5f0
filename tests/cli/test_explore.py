from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from diagnoses import MIXED
from sharpmax.cli import main
from sharpmax.cli.explore import PageServer


def _run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(["explore", *map(str, arguments)])
    return exit_.value.code


def test_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--output", tmp_path / "new/page.html") == 0
    assert f"Page: {tmp_path / 'new/page.html'}" in capsys.readouterr().out
    assert ">null</script>" in (tmp_path / "new/page.html").read_text(encoding="utf-8")
    MIXED.save(tmp_path / "diagnosis.json")
    assert _run(tmp_path / "diagnosis.json", "--output", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"verdict":"dispersing"' in page


def test_refuses_what_is_no_diagnosis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    assert _run(tmp_path / "other.json", "--output", tmp_path / "page.html") == 1
    assert "other.json" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_serves_this_machine_alone() -> None:
    with PageServer("<p>here</p>") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            assert server.server_address[0] == "127.0.0.1"
            with urllib.request.urlopen(server.address) as answer:
                assert answer.read() == b"<p>here</p>"
            for request, code in (
                (urllib.request.Request(f"{server.address}other"), 404),
                (urllib.request.Request(server.address, headers={"Host": "elsewhere"}), 403),
            ):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(request)
                assert refused.value.code == code
                refused.value.close()
        finally:
            server.shutdown()
            thread.join()
