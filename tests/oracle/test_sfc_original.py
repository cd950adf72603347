"""What `bench sfc` compares with is honest: the same network and the same gradient step, in plain PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from hotloop.bench.sfc import BATCH, _batches, _engine
from hotloop.bench.sfc_original import AttentionLearner, AttentionNet
from hotloop.experience import Item
from hotloop.spec.reading import load_spec

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("one_torch_thread")]


def test_it_has_the_workloads_weights() -> None:
    assert sum(each.numel() for each in AttentionNet().parameters()) == 177_294


def test_a_gradient_step_is_the_engines() -> None:
    engine = _engine(load_spec("sfc_original"))
    state = engine.init(jax.random.key(3))
    batches = _batches()
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf[:1]), Item(*batches))
    learned, _, sums = jax.jit(lambda s, b: engine.update(s, b, engine.learning_rate(jnp.int32(0))))(state, one)
    named = engine.on_host().to_named(state.params)
    learner = match(named)
    s_tm1, a_tm1, r_t, discount_t, s_t = batches
    first = tuple(
        {name: torch.from_numpy(part[0]) for name, part in each.items()} if isinstance(each, dict) else each
        for each in (s_tm1, torch.from_numpy(a_tm1[0]).long(), *map(torch.from_numpy, (r_t[0], discount_t[0])), s_t)
    )
    loss = learner.learn(first)  # type: ignore[arg-type]
    assert len(a_tm1[0]) == BATCH
    np.testing.assert_allclose(float(sums[0]), float(loss), rtol=1e-5)
    after = engine.on_host().to_named(learned.params)
    expected = {name: learner.online.state_dict()[theirs].numpy().T for name, theirs in names(named).items()}
    for name, array in expected.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-4, atol=2e-6, err_msg=name)


def names(named: dict[str, np.ndarray]) -> dict[str, str]:
    """The engine's names of the weights, and the module's."""
    found = {}
    for name in named:
        kind = "weight" if name.endswith("kernel") else "bias"
        number = int(name.split("dense_")[-1].partition("/")[0]) if "dense_" in name else 0
        if "/dc/" in name:
            found[name] = f"dc.{2 * number}.{kind}"
        elif "/dc_services/" in name or "/pending/" in name:
            branch = "services" if "/dc_services/" in name else "pending"
            found[name] = f"{branch}.{0 if '/rows/' in name else 3}.{kind}"
        elif "attention" in name:
            found[name] = f"{'inner' if 'dense_0' in name else 'outer'}.{kind}"
        elif name.startswith("head"):
            found[name] = f"joined.6.{kind}"
        else:
            found[name] = f"joined.{2 * number}.{kind}"
    return found


def match(named: dict[str, np.ndarray]) -> AttentionLearner:
    learner = AttentionLearner()
    state = {theirs: torch.from_numpy(named[ours].T.copy()) for ours, theirs in names(named).items()}
    for net in (learner.online, learner.target):
        net.load_state_dict(state)
    return learner
