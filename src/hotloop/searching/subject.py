"""What is searched: a spec into which a trial's values are put, by paths of ours or of SLM-Lab's."""

import copy
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from hotloop import registry
from hotloop.errors import SpecError
from hotloop.spec import Spec, slm_lab
from hotloop.spec.reading import given, load_spec


class Subject(Protocol):
    """Plain data that travels to the process of a trial."""

    def with_values(self, values: Mapping[str, object], *, imports_plugins: bool = False) -> Spec:
        """The spec of a trial; raises SpecError for values that make none.

        With `imports_plugins`, modules that it names are imported first, as in the process that trains it.
        """


class OwnSpec(NamedTuple):
    """A spec of ours; paths are its fields."""

    data: dict[str, object]

    @classmethod
    def of(cls, spec: Spec) -> "OwnSpec":
        """A spec that was read."""
        return cls(given(spec))

    def with_values(self, values: Mapping[str, object], *, imports_plugins: bool = False) -> Spec:
        """The spec with these fields."""
        return _unmeasured(load_spec(self.data, values, imports_plugins=imports_plugins))


class SlmLabSpec(NamedTuple):
    """A spec of SLM-Lab's; paths are those of its file, and what they mean is read anew for each trial."""

    name: str
    original: dict[str, object]
    variables: dict[str, str]
    overrides: dict[str, object]  # fields of ours

    def with_values(self, values: Mapping[str, object], *, imports_plugins: bool = False) -> Spec:
        """The spec with these fields, in our words; none of its fields names a plug-in."""
        del imports_plugins
        data = copy.deepcopy({key: value for key, value in self.original.items() if key != "search"})
        for path, value in values.items():
            *parents, last = path.split(".")
            section = data
            for part in parents:
                child = section[part] = {} if section.get(part) is None else section[part]
                if not isinstance(child, dict):
                    raise SpecError(f"search: {path}: {part} is {child!r:.40}, expected a section")
                section = child
            section[last] = value
        return _unmeasured(load_spec(slm_lab.translated(self.name, data, self.variables).spec, self.overrides))


def _unmeasured(spec: Spec) -> Spec:
    """The spec with a pipeline that follows from it: trials run side by side, and the best gives its score again."""
    is_open = spec.pipeline == "auto" and not registry.steps_on_device(spec.env.id, spec.engine, spec.pipeline)
    is_open &= spec.seeds == 1 and spec.turns is None and not registry.has_agents(spec.env.id)
    return spec.with_field("actors.measure", False) if is_open else spec
