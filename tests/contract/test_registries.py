"""What a registry names exists, and what can be combined can be."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any, get_args

import jax
import numpy as np
import pytest

from hotloop import registry
from hotloop.engines.jax.engine import JaxEngine
from hotloop.registry import BENCHES, ENGINES, ENVS, HEADS, PIPELINES, TORSOS, Entry
from hotloop.spec import (
    Branch,
    Branches,
    C51Head,
    Cnn,
    Head,
    Impala,
    IqnHead,
    Mlp,
    Network,
    QuantileHead,
    ScalarHead,
    Spec,
    Torso,
)
from hotloop.spec.kinds import kinds_of
from hotloop.spec.spec import LearnsFrom

pytestmark = pytest.mark.less_optimised

REGISTRIES: dict[str, Mapping[str, Entry]] = {"env": ENVS, "benchmark": BENCHES}
ENTRIES = [(what, name) for what, entries in REGISTRIES.items() for name in entries]
BATCH, ACTIONS = 3, 4

# A small section and an observation for each kind; a new kind without one fails below.
TWO_BRANCHES = {"far": Branch(rows=(4,), hidden=(5,)), "near": Branch(hidden=(5,))}
TORSO_SECTIONS: dict[str, tuple[Any, Any]] = {
    "mlp": (Mlp(hidden=(6,)), (5,)),
    "cnn": (Cnn(kind="cnn", channels=(4,), kernels=(3,), strides=(1,), hidden=(6,)), (6, 5, 2)),
    "impala": (Impala(kind="impala", channels=(3, 4), blocks=1, hidden=(6,)), (6, 5, 2)),
    "branches": (
        Branches(kind="branches", branches=TWO_BRANCHES, attention=3, hidden=(6,)),
        {"far": (3, 2), "near": (4,)},
    ),
}
HEAD_SECTIONS = {
    "scalar": ScalarHead(),
    "c51": C51Head(kind="c51", atoms=7),
    "qr": QuantileHead(kind="qr", quantiles=3),
    "iqn": IqnHead(kind="iqn", cosines=5, acting_taus=4),
}
COMPOSITIONS = [(torso, head, {}) for torso, head in product(TORSOS, HEADS)]
COMPOSITIONS += [("mlp", head, {"dueling": True, "hidden": (5,)}) for head in HEADS]
COMPOSITIONS += [("mlp", head, {"trunk": (7, 5)}) for head in HEADS]


@pytest.mark.parametrize(("what", "name"), ENTRIES)
def test_every_name_leads_to_something_callable(what: str, name: str) -> None:
    assert callable(registry.load(REGISTRIES[what], name, what))
    assert REGISTRIES[what][name].about


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_can_be_started_and_made(name: str) -> None:
    assert callable(registry.imported(ENGINES[name].start))
    assert callable(registry.imported(ENGINES[name].make))
    assert ENGINES[name].about


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_has_its_makers(name: str) -> None:
    record = PIPELINES[name]
    makers = {**record.on_device, **record.on_host}
    assert makers
    assert set(makers) <= set(get_args(LearnsFrom))
    assert all(callable(registry.imported(maker)) for maker in (*record.on_device.values(), *record.on_host.values()))
    assert record.about


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_has_its_module(name: str) -> None:
    module, _, function = BENCHES[name].target.partition(":")
    assert find_spec(module) is not None
    assert callable(getattr(import_module(module), function))


@pytest.mark.parametrize("what", REGISTRIES)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(what: str) -> None:
    known = next(iter(REGISTRIES[what]))
    with pytest.raises(ValueError, match=f"unknown {what} '{known}x'; did you mean '{known}'?"):
        registry.load(REGISTRIES[what], f"{known}x", what)
    with pytest.raises(ValueError, match=f"unknown {what} 'qqqqq'; known: "):
        registry.load(REGISTRIES[what], "qqqqq", what)


RECORDS = [("torso", kind) for kind in TORSOS] + [("head", kind) for kind in HEADS]


@pytest.mark.parametrize(("what", "kind"), RECORDS)
def test_every_record_is_whole(what: str, kind: str) -> None:
    record: Any = (TORSOS if what == "torso" else HEADS)[kind]
    section = registry.imported(record.section)
    assert issubclass(section, Torso if what == "torso" else Head)
    assert kinds_of(section) == (kind,)
    assert set(record.builders) == set(ENGINES)
    assert all(callable(registry.builder(record, engine)) for engine in ENGINES)
    assert what == "torso" or callable(registry.imported(record.estimates))
    assert record.about
    with pytest.raises(ValueError, match="is not built for engine abacus"):
        registry.builder(record, "abacus")


def test_every_kind_that_is_registered_is_tried_below() -> None:
    assert set(TORSOS) == set(TORSO_SECTIONS)
    assert set(HEADS) == set(HEAD_SECTIONS)


@pytest.mark.parametrize("choice", sorted({choice for record in HEADS.values() for choice in record.refuses}))
def test_what_a_head_refuses_is_a_field_of_a_spec(choice: str) -> None:
    section: Any = Spec()
    for name in choice.partition(" ")[0].split("."):
        assert name in type(section).model_fields
        section = getattr(section, name)


@pytest.mark.parametrize(("torso", "head", "fields"), COMPOSITIONS)
def test_every_torso_and_head_compose_to_one_q_value_per_action(torso: str, head: str, fields: dict[str, Any]) -> None:
    section, shape = TORSO_SECTIONS[torso]
    head_section: Any = HEAD_SECTIONS[head].model_copy(update=fields)
    network = Network(torso=section, head=head_section)
    random = np.random.default_rng(0)
    shapes = shape if isinstance(shape, dict) else {"": shape}
    parts = {name: random.normal(size=(BATCH, *part)).astype(np.float32) for name, part in shapes.items()}
    obs_B: Any = parts if isinstance(shape, dict) else parts[""]
    obs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), obs_B)
    engine = JaxEngine(Spec(network=network), obs, ACTIONS)
    params = random.normal(size=engine.layout.size).astype(np.float32)
    q_BA = np.asarray(jax.jit(engine.q_values)(params, obs_B))
    assert (q_BA.shape, q_BA.dtype) == ((BATCH, ACTIONS), np.float32)
    assert np.isfinite(q_BA).all()
    assert np.ptp(q_BA, axis=0).min() > 0, "Q-values depend on the observation"
    assert np.ptp(q_BA, axis=1).min() > 0, "and on the action"
    each = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], obs_B) for i in range(BATCH)]
    one_by_one = np.concatenate([engine.q_values(params, one_B) for one_B in each])
    np.testing.assert_allclose(q_BA, one_by_one, rtol=1e-4, atol=1e-5)
