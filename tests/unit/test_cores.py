"""How many cores this process may use."""

import os

import pytest

from hotloop import cores


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/user/run", {"user/cpu.max": "150000 100000\n", "user/run/cpu.max": "max 100000\n"}, 2),
        ("0::/user", {"user/cpu.max": "800000 100000\n"}, 4),
        ("1:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ("0::/", {}, 4),
    ],
)
def test_cores_are_those_it_is_bound_to_and_no_more_than_its_groups_may_use(
    line, files, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(cores, "GROUPS", tmp_path)
    monkeypatch.setattr(cores, "OF_PROCESS", tmp_path / "of_process")
    (tmp_path / "of_process").write_text(f"{line}\n9:memory:/x\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores.usable_cores() == expected
