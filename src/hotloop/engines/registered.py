"""A whole network that a plug-in registered: a spec names it, and makes it with its options."""

import inspect
from collections.abc import Mapping
from typing import NamedTuple

from hotloop import plugins, registry
from hotloop.errors import SpecError, said
from hotloop.spec import CustomNetwork, Spec

OF_FLAX = ("name", "parent")
"""What a class of flax takes beside its own options."""


class RegisteredNetwork(NamedTuple):
    """The class or function that makes a network for one engine, and the options it is called with."""

    name: str
    target: str
    options: Mapping[str, object]

    def make(self) -> object:
        """A new one; raises SpecError for whatever the code of the plug-in does instead."""
        try:
            maker = registry.imported(self.target)
        except ModuleNotFoundError as error:
            raise SpecError(f"{self}: {plugins.not_found(self.target.partition(':')[0], error)}") from error
        except Exception as error:  # whatever someone else's code raises
            raise SpecError(f"{self} cannot be imported: {said(error)}") from error
        if not callable(maker):
            raise SpecError(f"{self} is {what_is(maker)}, expected a class or a function that makes the network")
        self._refuse_options(maker)
        try:
            return maker(**self.options)
        except Exception as error:  # whatever someone else's code raises
            raise SpecError(f"{self} raised {said(error)} with options {dict(self.options)}") from error

    def __str__(self) -> str:
        return f"'{self.name}' of {self.target}"

    def _refuse_options(self, maker: object) -> None:
        """Raise SpecError for options that the class or function does not take, or that it lacks."""
        try:
            parameters = inspect.signature(maker).parameters.values()  # type: ignore[arg-type]  # it is callable
        except (TypeError, ValueError):  # it does not say what it takes
            return
        named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        known = [each.name for each in named]
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
        for option in self.options:
            if option not in known and not takes_any:
                own = [name for name in known if name not in OF_FLAX]
                hint = registry.nearest(option, own) if own else "it takes none"
                raise SpecError(f"{self} takes no option '{option}'; {hint}")
        missing = [each.name for each in named if each.default is each.empty and each.name not in self.options]
        if missing:
            raise SpecError(f"{self} needs the option(s) {', '.join(missing)}; give them in network.options")


def registered_network(spec: Spec) -> RegisteredNetwork | None:
    """The network that a spec names, to be made; None if it has a torso and a head. Imports nothing.

    Raises SpecError for one that nobody registered, or that is not for the spec's engine.
    """
    network = spec.network
    if not isinstance(network, CustomNetwork):
        return None
    record = network.record
    if record is None:
        known = list(registry.NETWORKS)
        hint = f"; {registry.nearest(network.name, known)}" if known else ""
        raise SpecError(
            f"network: this spec has a network of your own ({network.name[:80]}); pass it again from Python: "
            f"hotloop.load(run, network=module); or name the module that registers it: plugins: [module]{hint}"
        )
    if spec.engine not in record.builders:
        made_for = ", ".join(record.builders) or "none"
        raise SpecError(f"network '{network.name}' is not made for engine {spec.engine}, but for {made_for}; use that")
    return RegisteredNetwork(network.name, record.builders[spec.engine], network.options)


def what_is(found: object) -> str:
    """A thing of the wrong kind, in words."""
    return f"the class {found.__qualname__}" if isinstance(found, type) else f"a {type(found).__qualname__}"
