"""What an exchange takes: refused with figures where it is not there, given back when it is closed."""

import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from exchanges import PARCEL, WEIGHTS, holds, open_descriptors, parcel_of, small_form

from hotloop import memory_left
from hotloop.errors import SpecError
from hotloop.replay.plan import available_host_memory
from hotloop.transport import limits, memory
from hotloop.transport.actor_end import DESCRIPTORS_OF_AN_END
from hotloop.transport.exchange import DESCRIPTORS_BESIDE, DESCRIPTORS_PER_ACTOR, Exchange
from hotloop.transport.form import Form
from hotloop.trees import ArraySpec


def test_all_descriptors_are_given_back_and_nothing_has_a_name() -> None:
    before, named = open_descriptors(), set(os.listdir("/dev/shm"))
    for _ in range(3):
        exchange = Exchange(small_form(actors=3))
        ends = [exchange.learner_seat().open(), *(exchange.actor_seat(actor).open() for actor in range(3))]
        assert set(os.listdir("/dev/shm")) == named
        for end in ends:
            end.close()
            end.close()
        exchange.close()
        exchange.close()
    assert open_descriptors() == before


def test_no_more_descriptors_are_opened_than_were_asked_for() -> None:
    before = len(open_descriptors())
    with Exchange(small_form(actors=5)) as exchange:
        ends = [exchange.learner_seat().open(), *(exchange.actor_seat(actor).open() for actor in range(5))]
        assert len(open_descriptors()) - before == DESCRIPTORS_BESIDE + 5 * (
            DESCRIPTORS_PER_ACTOR + DESCRIPTORS_OF_AN_END
        )
        for end in ends:
            end.close()


def test_views_of_a_parcel_outlive_the_ends() -> None:
    with Exchange(small_form()) as exchange:
        actor, learner = exchange.actor_seat(0).open(), exchange.learner_seat().open()
        assert actor.hand_over(parcel_of(9))
        (parcel,) = learner.committed()
        actor.close()
        learner.close()
    assert holds(parcel.arrays, 9)


def test_too_little_memory_is_refused_with_both_figures() -> None:
    huge = Form(4, 8, ArraySpec((1 << 40,), np.uint8), WEIGHTS)
    with pytest.raises(SpecError, match=rf"needs {huge.num_bytes:,} bytes but the machine leaves [\d,]+; use fewer"):
        Exchange(huge)


def test_a_limit_of_address_space_is_named() -> None:
    program = (
        "import resource, numpy\nfrom hotloop.transport.exchange import Exchange\n"
        "from hotloop.transport.form import Form\nfrom hotloop.trees import ArraySpec\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "Exchange(Form(1, 1, ArraySpec((4 << 30,), numpy.uint8), {}))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "SpecError" in ended.stderr
    assert "bytes but" in ended.stderr


def test_memory_that_a_control_group_withholds_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "user" / "job"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("max\n")
    (job / "memory.current").write_text("500\n")
    (tmp_path / "user" / "memory.max").write_text("4000\n")
    (tmp_path / "user" / "memory.current").write_text("1000\n")
    (tmp_path / "cgroup").write_text("0::/user/job\n")
    monkeypatch.setattr(memory_left, "GROUPS", tmp_path)
    monkeypatch.setattr(memory_left, "OF_PROCESS", tmp_path / "cgroup")
    assert limits.memory_left()[f"control group {tmp_path / 'user'}"] == 3000
    with pytest.raises(SpecError, match=r"needs 3,001 bytes but control group .*user leaves 3,000"):
        limits.refuse_more_memory_than_there_is(3001)
    limits.refuse_more_memory_than_there_is(3000)


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_the_kernel_keeps_in_memory_are_not_in_the_way(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, group = (memory_left.VERSION_1, tmp_path / "memory") if version == 1 else (memory_left.VERSION_2, tmp_path)
    group.mkdir(exist_ok=True)
    (group / files.limit).write_text("10000\n")
    (group / files.usage).write_text("9000\n")
    of_files = "".join(f"{name} 2500\n" for name in files.reclaimable)
    (group / "memory.stat").write_text(f"anon 4000\nshmem 700\n{of_files}unevictable 3\n")
    (tmp_path / "cgroup").write_text("3:cpu:/\n4:memory:/elsewhere\n" if version == 1 else "0::/\n")
    monkeypatch.setattr(memory_left, "GROUPS", tmp_path)
    monkeypatch.setattr(memory_left, "OF_PROCESS", tmp_path / "cgroup")
    assert memory_left.left_by_groups() == {f"control group {group}": 6000}
    assert available_host_memory() == 6000
    limits.refuse_more_memory_than_there_is(6000)
    with pytest.raises(SpecError, match="leaves 6,000"):
        limits.refuse_more_memory_than_there_is(6001)


def test_memory_that_is_gone_when_it_is_asked_for_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    before = open_descriptors()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SpecError, match="bytes of shared memory for actors and learner cannot be had: No space left"):
        Exchange(small_form())
    assert open_descriptors() == before


def test_too_few_descriptors_are_refused_with_both_figures() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(open_descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 40, hard))
    try:
        with pytest.raises(SpecError, match=r"need 204 more file descriptors but \d+ of \d+ are left.*ulimit -n"):
            Exchange(small_form(actors=100))
        Exchange(small_form(actors=2)).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")])
def test_another_platform_is_refused(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", system)
    monkeypatch.setattr(memory.platform, "machine", lambda: machine)
    with pytest.raises(SpecError, match=f"need Linux on x86-64; this is {system} on {machine}"):
        Exchange(small_form())


def test_it_can_be_imported_where_it_cannot_be_opened() -> None:
    program = (
        "import sys\nsys.modules.update(fcntl=None, resource=None)\nfrom multiprocessing import reduction\n"
        "del reduction.DupFd\nimport os\ndel os.eventfd, os.memfd_create\nimport hotloop.transport.exchange"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_seat_goes_along_only_with_a_process_that_is_started() -> None:
    with Exchange(small_form()) as exchange, pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(exchange.actor_seat(0))


def test_a_form_that_cannot_be_exchanged_is_refused() -> None:
    with pytest.raises(SpecError, match="at least 1"):
        Form(0, 3, PARCEL, WEIGHTS)
    with pytest.raises(SpecError, match="Python objects"):
        Exchange(Form(1, 3, ArraySpec((2,), object), WEIGHTS))
    with Exchange(small_form(actors=2)) as exchange, pytest.raises(IndexError, match="no actor 2"):
        exchange.actor_seat(2)


def test_an_actor_cannot_write_to_the_weights() -> None:
    with Exchange(small_form()) as exchange:
        actor = exchange.actor_seat(0).open()
        with pytest.raises(ValueError, match="read-only"):
            actor._weights._newest.store(1)
        actor.close()
