"""Train with a whole network of your own, by its name in a spec, in PyTorch or JAX.

`plugins: [own_network_in_a_spec]` in a spec imports this module, so it names what is heavy instead of importing it.
The same from the command line, in this folder:

    hotloop train cartpole --engine torch --set plugins=[own_network_in_a_spec] \\
        --set 'network={kind: custom, name: wide, options: {hidden: 96}}'
"""

import hotloop

hotloop.register_network(
    "wide",
    hotloop.NetworkRecord(
        builders={"torch": "own_torch_network:Wide", "jax": "own_network:Wide"},  # called with network.options
        about="two wide layers with layer normalisation between them, for CartPole",
    ),
)

SPEC = {
    "name": "wide",
    "plugins": ["own_network_in_a_spec"],
    "engine": "torch",
    "env": {"id": "CartPole-v1"},
    "network": {"kind": "custom", "name": "wide", "options": {"hidden": 96}},
    "stop": {"steps": 5_000},
    "evaluation": {"every": 2_500},
}

if __name__ == "__main__":
    run = hotloop.train(SPEC)
    print(run)
    print(hotloop.load(run.path).evaluate(episodes=20))  # its maker may have the plug-in imported again
