"""Train with a head, a torso and a device env of your own, by their names in a spec: see `own_kinds.py`."""

import hotloop

SPEC = {
    "name": "two-hot",
    "plugins": ["own_kinds"],
    "env": {"id": "corridor", "options": {"length": 8}},
    "network": {"torso": {"kind": "fourier", "waves": 16}, "head": {"kind": "two_hot", "low": -5.0, "high": 1.0}},
    "stop": {"steps": 10_000},
    "evaluation": {"every": 5_000},
}

if __name__ == "__main__":
    run = hotloop.train(SPEC)
    print(run)
    print(hotloop.load(run).evaluate(episodes=20))  # its maker may have the plug-in imported again
