"""hotloop trains value-based agents (the DQN family) at the speed of the hardware."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.api import diagnose, profile_env, resume, slm_lab, tune
    from hotloop.listeners import STOP, Listener
    from hotloop.registry import (
        Entry,
        HeadRecord,
        NetworkRecord,
        TorsoRecord,
        register_env,
        register_head,
        register_network,
        register_torso,
    )
    from hotloop.spec import Spec
    from hotloop.spec.reading import load_spec

__version__ = "0.1.0"
__all__ = [
    "STOP",
    "Entry",
    "HeadRecord",
    "Listener",
    "NetworkRecord",
    "Spec",
    "TorsoRecord",
    "diagnose",
    "load",
    "load_spec",
    "profile",
    "profile_env",
    "register_env",
    "register_head",
    "register_network",
    "register_torso",
    "resume",
    "search",
    "slm_lab",
    "train",
    "tune",
]

_PUBLIC = {
    "STOP": "hotloop.listeners",
    "Listener": "hotloop.listeners",
    "Spec": "hotloop.spec",
    "load_spec": "hotloop.spec.reading",
    "train": "hotloop.api",
    "resume": "hotloop.api",
    "load": "hotloop.api",
    "profile": "hotloop.api",
    "diagnose": "hotloop.api",
    "tune": "hotloop.api",
    "profile_env": "hotloop.api",
    "search": "hotloop.searching.run",
    "slm_lab": "hotloop.api",
    "Entry": "hotloop.registry",
    "HeadRecord": "hotloop.registry",
    "NetworkRecord": "hotloop.registry",
    "TorsoRecord": "hotloop.registry",
    "register_env": "hotloop.registry",
    "register_head": "hotloop.registry",
    "register_network": "hotloop.registry",
    "register_torso": "hotloop.registry",
}


def __getattr__(name: str) -> Any:  # `train(spec, **{"stop.steps": 9})` has no type that checkers would accept
    """Import the public names on first use: `import hotloop` stays light."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hotloop' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)
