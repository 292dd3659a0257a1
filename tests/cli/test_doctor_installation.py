"""`throttlekit doctor` names another distribution that has modules with the name of this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.doctor import run_doctor
from throttlekit_cli.doctor.examine import examine_installation


@pytest.mark.parametrize(
    ("owners", "named"),
    [
        ([], []),
        (["throttlekit-jobs"], []),
        (["Throttlekit_Jobs"], []),
        (["throttlekit"], ["throttlekit"]),
        (["throttlekit-jobs", "throttlekit", "throttlekit"], ["throttlekit"]),
        (["other", "throttlekit-jobs", "throttlekit"], ["other", "throttlekit"]),
    ],
)
def test_every_other_owner_of_the_name_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, owners: list[str], named: list[str]
) -> None:
    """The warning is the same whether or not this distribution is known as an owner; an editable one is not."""
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"throttlekit": owners, "other": ["x"]})
    found = list(examine_installation())
    assert [each.grade for each in found] == ["warning"] * len(named)
    for finding, name in zip(found, named, strict=True):
        assert f"{name!r} installs a package named 'throttlekit' too" in finding.what
        assert finding.remedy.startswith(f"pip uninstall {name},")


def test_another_distribution_is_found_in_real_installations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check of the doctor finds the other distribution in the list of installed files."""
    info = tmp_path / "throttlekit-0.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: throttlekit\nVersion: 0.2.0\n")
    (info / "RECORD").write_text("throttlekit/__init__.py,,\nthrottlekit/limiter.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = run_doctor("--json", "--url", "memory://")
    (finding,) = [each for each in json.loads(done.stdout) if each["about"] == "install"]
    assert (finding["grade"], "'throttlekit'" in finding["what"]) == ("warning", True)
