"""A stand-in for `update`, looked at when it is first called: what it must give is what the engine's own gives."""

from collections.abc import Callable

from hotloop.engines.protocol import Learned
from hotloop.errors import SpecError
from hotloop.experience import METRICS
from hotloop.trees import HasShape, named_leaves

Update = Callable[..., object]
RESULTS = "learner state, TD errors, sums of METRICS"


class CheckedUpdate:
    """Calls a stand-in; raises SpecError if the first of its results is not of the form it must have.

    In a program on the device it is only called to be traced.
    """

    def __init__(self, update: Update, on_device: bool) -> None:
        """`on_device`: it stands in for `JaxEngine.update`, else for `Engine.update`."""
        self._update, self._on_device, self._is_sound = update, on_device, False

    def __call__(self, state: object, batches: object, *more: object, **named: object) -> object:
        """As the engine's `update`."""
        if self._is_sound:
            return self._update(state, batches, *more, **named)
        before = _forms(state)  # the stand-in may give its arrays away
        made = self._update(state, batches, *more, **named)
        self._require(made, before, getattr(batches, "r_t", None))
        self._is_sound = True
        return made

    def _require(self, made: object, before: dict[str, str], like_td: HasShape | None) -> None:
        if not isinstance(made, tuple if self._on_device else Learned) or len(made) != 3:
            seen = f"{len(made)} results" if isinstance(made, tuple) else f"a {type(made).__qualname__}"
            wanted = f"three results: {RESULTS}" if self._on_device else f"a Learned of three: {RESULTS}"
            raise _refusal(seen, wanted)
        state, td, sums = made
        after = _forms(state)
        if wrong := [name for name in {**before, **after} if before.get(name) != after.get(name)]:
            name, none = wrong[0], "absent"
            seen, wanted = after.get(name, none), before.get(name, none)
            raise _refusal(f"a state whose {name or 'form'} is {seen}", f"{wanted}, as it was given")
        if like_td is not None and _shape(td) != tuple(like_td.shape):
            raise _refusal(f"TD errors of {_form(td)}", f"one for each sample: {tuple(like_td.shape)}")
        if _shape(sums) != (len(METRICS),):
            raise _refusal(f"sums of {_form(sums)}", f"({len(METRICS)},): {', '.join(METRICS)}")


def _refusal(seen: str, wanted: str) -> SpecError:
    return SpecError(f"replace: the stand-in for update returned {seen}, expected {wanted}")


def _forms(state: object) -> dict[str, str]:
    return {name: _form(leaf) for name, leaf in named_leaves(state).items()}


def _shape(leaf: object) -> tuple[int, ...] | None:
    return tuple(leaf.shape) if isinstance(leaf, HasShape) else None


def _form(leaf: object) -> str:
    return f"{leaf.dtype}{tuple(leaf.shape)}" if isinstance(leaf, HasShape) else f"a {type(leaf).__qualname__}"
