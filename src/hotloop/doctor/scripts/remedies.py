"""What to do about a cause in someone's script, what that leaves of it, and whether it changes what is learned."""

from typing import NamedTuple

from hotloop.cores import usable_cores
from hotloop.doctor.scripts.attach import Attended, Process


class Remedy(NamedTuple):
    """To be pasted, or done at the line that is named."""

    text: str
    leaves: float = 0.0
    """Share of the cause's time that is left after it."""
    changes_algorithm: bool = False
    evidence: tuple[str, ...] = ()
    apply: str = ""
    """What the hook can do of it without an edit; empty if nothing."""


PLAIN = {
    "env-step": Remedy(
        "make the line that is named cheaper, or step envs in processes: gymnasium.vector.AsyncVectorEnv"
    ),
    "env-one-at-a-time": Remedy("AsyncVectorEnv instead of SyncVectorEnv (SubprocVecEnv instead of DummyVecEnv)", 0.55),
    "env-transport": Remedy(
        "SyncVectorEnv instead of AsyncVectorEnv (DummyVecEnv): steps cost less than the way", 0.15
    ),
    "rendering": Remedy("no env.render() in training; render_mode=None", apply="rendering"),
    "act-one-at-a-time": Remedy("several envs in a vector env, and one forward pass for all of them", 0.2, True),
    "replay-insert": Remedy("arrays of a fixed size, written by index: self.obs[i] = obs", 0.1),
    "replay-sample": Remedy(
        "arrays of a fixed size, read by one index array: self.obs[np.random.randint(size, size=batch)]", 0.1
    ),
    "priorities": Remedy("a sum tree in NumPy over all of a batch at once, or uniform draws", 0.1),
    "host-sync": Remedy(
        "one .cpu().numpy() for a whole batch, outside of the loop; .item() only where a line is logged", 0.1
    ),
    "conversion": Remedy("torch.from_numpy of one float32 array instead of torch.tensor of a list", 0.1),
    "debug-work": Remedy("leave it out of the training loop", apply="anomaly"),
    "target-copy": Remedy("rarer, or torch._foreach_lerp_ over all parameters at once", 0.2),
    "waiting": Remedy("blocking get() with a larger queue instead of polling; fewer locks held around work"),
    "pickling": Remedy("shared memory and indices through the queue, or several transitions in one message", 0.2),
    "logging": Remedy("a line every few hundred steps", 0.02, apply="logging"),
    "evaluation": Remedy("rarer, or fewer episodes", 0.1),
    "checkpointing": Remedy("rarer, and without the replay", 0.05),
    "threads": Remedy("torch.set_num_threads(1)", 0.3),
    "update-count": Remedy("fewer gradient steps for each env step", 0.5, True),
    "update-arithmetic": Remedy("a smaller network or batch, or an accelerator", 0.5, True),
}
OVERHEAD_LEFT = 0.3
"""Of an eager gradient step that is left of it compiled: 196 of 750 µs were measured for a small net."""


def remedy_of(cause: str, attended: Attended, learner: Process, arithmetic: float | None) -> Remedy:
    """For what was seen."""
    known = learner.learning or {}
    threads = known.get("threads")
    if cause == "update-dispatch":
        more: tuple[str, ...] = (
            () if known.get("several_at_once") else ("its optimiser goes through parameters one by one",)
        )
        text = "torch.compile of the whole update ('reduce-overhead' on a GPU), Adam(fused=True)"
        if isinstance(threads, int) and threads > 1:
            more += (f"on {threads} threads, of which small steps want one",)
            text = f"torch.set_num_threads(1) first; {text}"
        return Remedy(text, max(arithmetic or 0.0, OVERHEAD_LEFT), False, more, "optimizer")
    remedy = PLAIN.get(cause, Remedy(""))
    if cause == "env-one-at-a-time":
        return remedy._replace(leaves=max(1 / usable_cores(), 0.1) + 0.05)
    if cause == "debug-work" and known.get("anomaly"):
        return remedy._replace(text="torch.autograd.set_detect_anomaly(False)", evidence=("anomaly detection is on",))
    if cause == "pickling" and (sent := attended.total("sent")):
        each = attended.total("sent_bytes") / sent
        said = f"{sent / attended.steady_seconds:,.0f} messages a second of {each:,.0f} bytes"
        return remedy._replace(evidence=(said,))
    if cause == "logging" and (values := attended.total("scalars")):
        return remedy._replace(evidence=(f"{values / attended.steady_seconds:,.0f} values a second",))
    if cause == "host-sync":
        pulled = (attended.total("items") + attended.total("transfers")) / attended.steady_seconds
        return remedy._replace(evidence=(f"{pulled:,.0f} values or tensors a second",))
    if cause == "act-one-at-a-time" and (asked := attended.total("asked")):
        share = attended.total("asked_one") / asked
        said = f"{share:.0%} of the times that it is asked, for one observation"
        fewer = Remedy(
            "a smaller network, or actions for several steps: it is asked for all envs at once already", 0.5, True
        )
        return (remedy if share >= 0.5 else fewer)._replace(evidence=(said,))
    return remedy
