"""Engine torch on two devices, as two processes on the CPU: the numbers of one, nothing left behind, and no hang."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import hotloop
from hotloop.engines.draws import draw
from hotloop.engines.torch import devices
from hotloop.engines.torch.engine import TorchEngine
from hotloop.errors import DeviceFailed, SpecError
from hotloop.experience import Item
from hotloop.spec.reading import parse_spec
from hotloop.trees import ArraySpec, named_leaves
from process_tree import children_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BATCH, ACTIONS, UPDATES = 8, 3, 3
OBS = ArraySpec((3,), np.float32)
IQN = {"kind": "iqn", "cosines": 5, "taus": 3, "target_taus": 4, "noise": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "iqn noisy double weights accumulated": {
        "network": {"torso": {"hidden": [6]}, "head": IQN},
        "target": {"rule": "double", "tau": 0.3},
        "replay": {"sampling": {"kind": "prioritized"}},
        "optimizer": {"accumulate": 2},
    },
    "float16 twice": {"precision": "float16", "replay": {"updates_per_batch": 2}, "updates_per_step": 6.0},
}


@pytest.fixture(autouse=True)
def strangers() -> None:
    """What other tests, in the same process of pytest, have left running is not a device."""
    _strangers[:] = psutil.Process().children(recursive=True)


_strangers: list[psutil.Process] = []


def helpers() -> list[psutil.Process]:
    """Processes of other devices; what multiprocessing keeps for itself is not one."""
    living = [(child, command) for child, command in children_of() if child not in _strangers]
    return [child for child, command in living if "resource_tracker" not in command]


@pytest.mark.parametrize(
    "name", [next(iter(CASES)), *(pytest.param(n, marks=pytest.mark.heavy) for n in list(CASES)[1:])]
)
def test_two_devices_learn_what_one_learns(name: str) -> None:
    random, lead = np.random.default_rng(0), (UPDATES, BATCH)
    seen = random.normal(size=(2, *lead, *OBS.shape)).astype(np.float32)
    numbers = random.normal(size=(2, *lead)).astype(np.float32)
    action = random.integers(0, ACTIONS, lead).astype(np.int32)
    items = Item(seen[0], action, numbers[0], 0.1 * numbers[1] + 0.8, seen[1])
    weight = random.uniform(0.2, 1.0, lead).astype(np.float32) if "sampling" in str(CASES[name]) else None
    learned = {}
    for count in (1, 2):
        case = {**CASES[name], "engine": "torch", "devices": count}
        case["replay"] = {"batch_size": BATCH, **case.get("replay", {})}
        engine = TorchEngine(parse_spec(case), OBS, ACTIONS)
        wanted = engine.wanted_to_learn(UPDATES, BATCH)
        draws = draw(wanted, np.random.default_rng(1)) if wanted else None
        state = engine.init(3)
        for _ in range(3):  # the second time the target net is news to the other device, and the rest is not
            found = engine.update(state, items, weight, 0.01, 1, draws)
            state = found.state
        learned[count] = found
        engine.close()
    one, two = learned[1], learned[2]
    by_name = named_leaves(two.state)
    rtol, atol = (1e-2, 2e-3) if "float16" in name else (1e-4, 1e-6)
    for leaf, array in named_leaves(one.state).items():
        np.testing.assert_allclose(np.asarray(by_name[leaf]), np.asarray(array), rtol=rtol, atol=atol, err_msg=leaf)
    np.testing.assert_allclose(two.td_KB, one.td_KB, rtol=rtol, atol=10 * atol)
    np.testing.assert_allclose(two.sums, one.sums, rtol=rtol, atol=10 * atol)
    assert not helpers()


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        return self.layer(obs_B)


SMALL: dict[str, Any] = {
    "engine": "torch",
    "devices": 2,
    "replay": {"capacity": 1_000, "start": 32, "batch_size": 8},
    "evaluation": {"every": 0},
    "log": {"every": 64},
    "stop": {"steps": 100_000},
    "env": {"id": "CartPole-v1", "num_envs": 4},
}


def test_a_device_that_dies_ends_the_run_saved_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")  # as on a cluster: it is not for the devices of one machine
    listening: list[str] = []

    def kill(log: Any) -> None:
        (other,) = helpers()
        for process in (psutil.Process(), other):
            listening.extend(c.laddr.ip for c in process.net_connections() if c.status == "LISTEN")
        os.kill(other.pid, signal.SIGKILL)

    started = time.monotonic()
    with pytest.raises(DeviceFailed, match=r"device 1 of 2 failed: .*exit code -9.*the run is saved in"):
        hotloop.train(SMALL, out=tmp_path / "run", network=Tiny, on_log=kill)
    assert time.monotonic() - started < 60
    assert listening, "gloo listens somewhere"
    assert set(listening) <= {"127.0.0.1", "::1"}
    assert not helpers()
    with pytest.warns(RuntimeWarning, match="running episodes cannot be restored"):
        resumed = hotloop.resume(tmp_path / "run", steps=1_000, network=Tiny)
    assert resumed.env_steps >= 1_000
    assert not helpers()


def test_what_several_devices_cannot_do_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Tiny):
        pass

    with pytest.raises(SpecError, match=r"the network cannot travel to another process: .*the top of a module"):
        hotloop.train(SMALL, out=None, network=Local)
    monkeypatch.setattr(devices.torch.cuda, "device_count", lambda: 1)
    for device, said in ((torch.device("cuda"), "torch sees 1 GPU"), (torch.device("cuda", 0), "names one, cuda:0")):
        engine = TorchEngine(parse_spec(SMALL), OBS, ACTIONS)
        assert engine._team is not None
        monkeypatch.setattr(engine.network, "device", device)
        with pytest.raises(SpecError, match=said):
            engine._team._start()
    assert not helpers()
