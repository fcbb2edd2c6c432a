"""Sessions of jobs: how they are set up, and how they learn where the server is."""

from __future__ import annotations

from pathlib import Path

from leasehold.spark.jobs.session import place


def test_a_password_is_in_no_option(tmp_path: Path) -> None:
    with place("redis://:secret@localhost") as given:
        assert "secret" not in str(given)
        kept = Path(given["urlFile"])
        assert kept.read_text() == "redis://:secret@localhost"
        assert kept.stat().st_mode & 0o077 == 0
    assert not kept.exists()
    with place("redis://localhost") as given:
        assert given == {"url": "redis://localhost"}
    assert tmp_path.exists()
