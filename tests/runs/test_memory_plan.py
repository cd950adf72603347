"""Which memory a run is judged by: the host's, the device's, or each for its own part."""

import pytest

from hotloop.assembly import Assembly
from hotloop.engines.jax.host import JaxOnHost
from hotloop.run_plan import memory_plan
from hotloop.spec.reading import parse_spec

MIB = 1 << 20
HOST = {"env": {"id": "CartPole-v1", "num_envs": 2}, "network": {"torso": {"hidden": [8]}}}
DEVICE = {**HOST, "env": {"id": "cartpole", "num_envs": 2}}


def plan(given, monkeypatch, *, device: int | None, host: int):
    monkeypatch.setattr(JaxOnHost, "memory_available", lambda self: device)
    monkeypatch.setenv("HOTLOOP_MEMORY_LIMIT", str(host))
    return memory_plan(Assembly(parse_spec(given)))


def test_the_replay_of_a_gymnasium_env_is_not_judged_by_the_memory_of_a_gpu(monkeypatch):
    fits = plan(HOST, monkeypatch, device=MIB, host=100 * MIB)
    assert fits.total > MIB, "the replay alone is larger than the GPU"
    assert fits.refusal() is None
    assert "replay" in str(fits).partition("; total")[0]
    assert "batches" in str(fits.beside)


def test_each_memory_is_refused_by_its_own_name(monkeypatch):
    small_host = plan(HOST, monkeypatch, device=100 * MIB, host=MIB)
    assert "host memory" in small_host.refusal()
    assert "lower replay.capacity" in small_host.refusal()
    small_device = plan(HOST, monkeypatch, device=100, host=100 * MIB)
    assert "host memory" not in small_device.refusal()
    assert "lower replay.batch_size" in small_device.refusal()


@pytest.mark.parametrize(("device", "host", "fits"), [(100 * MIB, MIB, True), (MIB, 100 * MIB, False), (0, MIB, False)])
def test_a_device_env_needs_the_devices_memory_alone(monkeypatch, device, host, fits):
    assert (plan(DEVICE, monkeypatch, device=device, host=host).refusal() is None) == fits


def test_on_a_cpu_all_of_it_is_the_hosts(monkeypatch):
    for given in (HOST, DEVICE):
        alone = plan(given, monkeypatch, device=None, host=MIB)
        assert alone.beside is None
        assert "replay" in alone.refusal()
