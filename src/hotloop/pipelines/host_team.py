"""Several agents in envs on the host: a `HostRun` for each learner, and one turn of the envs for all of them.

An env step is a turn of one env: a transition of each agent that is there. Schedules, the target net and the learning
start follow turns; gradient steps are earned by a learner's own transitions, so one whose agent is gone for a while
waits. With shared weights there is one learner, for which the agents are so many more envs, and turns earn.
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from hotloop.engines.policies import one_blas_thread
from hotloop.engines.protocol import Choice, Engine, Weights
from hotloop.envs.team import Rows, TeamArrays, TeamEnvs
from hotloop.errors import SpecError
from hotloop.evaluate import Episodes, Tell
from hotloop.experience import Totals
from hotloop.members import Members, seeds
from hotloop.pipelines.host_run import HostPipeline, HostRun
from hotloop.pipelines.host_team_play import play_team_on_host
from hotloop.pipelines.learning_run import STAGES
from hotloop.pipelines.session import Reading
from hotloop.pipelines.sync import learn_if_due
from hotloop.plain import number
from hotloop.replay.host import HostReplay
from hotloop.runs.state import from_arrays, to_arrays
from hotloop.spans import Spans
from hotloop.spec import Spec

TEAM = "team"
"""Under which a checkpoint has what belongs to no single learner."""


class HostTeamPipeline:
    """Shapes and sizes of the learners of a team; one engine for each, or the same for those of the same shapes."""

    def __init__(self, spec: Spec, envs: TeamEnvs, engines: Sequence[Engine]) -> None:
        self.spec, self.envs = spec, envs
        agents = range(len(envs.spaces.names))
        shares = [tuple(agents)] if spec.has_shared_weights else [(agent,) for agent in agents]
        self.rows = [Rows(envs, share) for share in shares]
        if (most := max(rows.num_envs for rows in self.rows)) > spec.replay.capacity:
            raise SpecError(
                f"replay.capacity is {spec.replay.capacity} but a turn of {envs.num_envs} env(s) gives a learner "
                f"{most} transitions; use at least {most} (spec: replay.capacity)"
            )
        self.learners = [
            HostPipeline(spec, rows, engine, learn_if_due) for rows, engine in zip(self.rows, engines, strict=True)
        ]

    @property
    def replay(self) -> HostReplay:
        """That of the learner whose observations are the largest."""
        return max((learner.replay for learner in self.learners), key=lambda replay: replay.row_bytes)

    def num_bytes(self) -> int:
        """Memory of that one."""
        return self.replay.num_bytes()

    def session(self, members: Members) -> "HostTeam":
        """Its state, for the host loop to drive."""
        return HostTeam(self, members)

    def close(self) -> None:
        """Let go of the envs."""
        self.envs.close()


class SavedTeam(TypedDict):
    """What a checkpoint holds beside the learners."""

    episodes: np.ndarray
    blocks: np.ndarray
    envs: TeamArrays


class HostTeam:
    """The learners of a team, in the order of its agents."""

    episodes: int
    """Those that have ended for all agents."""
    blocks: int

    def __init__(self, pipeline: HostTeamPipeline, members: Members) -> None:
        self.pipeline, self.spec, self.members, self.envs = pipeline, pipeline.spec, members, pipeline.envs
        self.spans, self.block_plan = Spans(*STAGES), self.spec.block_plan
        self.runs = [
            HostRun(learner, seeds([self._seed_of(index)]), self.spans)
            for index, learner in enumerate(pipeline.learners)
        ]
        self.names = [f"learner-{index}" for index in range(len(self.runs))]

    def _seed_of(self, index: int) -> int:
        return int(np.random.SeedSequence([self.spec.seed, index]).generate_state(1)[0])

    @property
    def env_steps(self) -> int:
        """Turns of all envs."""
        return self.runs[0].env_steps

    def compile(self) -> Choice | None:
        """Act and learn once with each engine, so that all is compiled before the clock runs."""
        one_of_each = {id(run.engine): run for run in self.runs}
        choices = [run.compile() for run in one_of_each.values()]
        return next((choice for choice in choices if choice is not None), None)

    def begin(self) -> None:
        """Fresh weights, empty replays, an episode begun in every env."""
        self.episodes = self.blocks = 0
        self._reset()
        for run in self.runs:
            run.begin()

    def _reset(self) -> None:
        seed = int(np.random.SeedSequence([self.spec.seed, self.blocks, 0, 0]).generate_state(1)[0])
        self.envs.reset(seed)

    def advance(self, blocks: int) -> None:
        """Run so many blocks, or fewer when a stop rule fires within."""
        stop, guard = self.spec.stop, self.spec.guard
        with one_blas_thread():
            for _ in range(blocks):
                if stop.episodes is not None and self.episodes >= stop.episodes:
                    return
                self.run_block()
                self.blocks += 1
                if any(run.skipped_in_a_row >= guard.skips_in_a_row for run in self.runs):
                    return

    def run_block(self) -> None:
        """q turns with the weights of the block's start, then the gradient steps that each learner has earned."""
        before, transitions = self.env_steps, np.zeros(len(self.runs), np.int64)
        for _ in range(self.block_plan.vector_steps):
            transitions += self.take_turn()
        if self.spec.has_shared_weights:
            transitions[:] = self.env_steps - before
        for run, earned in zip(self.runs, transitions, strict=True):
            run.learner.earn(int(earned), run.env_steps, run.learning_starts)
        for run in self.runs:
            run.pipeline.run_block(run)

    def take_turn(self) -> list[int]:
        """All agents act, every env takes the actions of all; returns the transitions of each learner."""
        rows, counts = self.pipeline.rows, []
        chosen = [run.actor.choose(self.env_steps) for run in self.runs]
        actions = [action_N for own, chosen_N in zip(rows, chosen, strict=True) for action_N in own.apart(chosen_N)]
        with self.spans["step"]:
            turn = self.envs.step(actions)
        turns = int(np.count_nonzero(~turn.failed))
        with self.spans["insert"]:
            for run, own in zip(self.runs, rows, strict=True):
                step = own.share(turn)
                run.learner.insert(step)
                run.count(step, turns)
                counts.append(int(np.count_nonzero(step.valid)))
        self.episodes += int(np.count_nonzero(turn.ended))
        return counts

    # -- what the host loop asks for --------------------------------------------------------------------

    def read(self) -> Reading:
        """The numbers of the present state."""
        each = [run.read() for run in self.runs]
        totals = Totals(*(np.concatenate(parts) for parts in zip(*(one.totals for one in each), strict=True)))
        return Reading(
            steps=np.concatenate([one.steps for one in each]),
            episodes=np.full(len(self.runs), self.episodes),
            first_update_at=np.concatenate([one.first_update_at for one in each]),
            updates=np.concatenate([one.updates for one in each]),
            skipped=np.concatenate([one.skipped for one in each]),
            skipped_in_a_row=np.concatenate([one.skipped_in_a_row for one in each]),
            totals=totals,
            are_in_same_envs=True,
        )

    def own_figures(self) -> dict[str, float]:
        """What a line of metrics says beside the usual, as `HostRun.own_figures`: means over the learners."""
        each = [run.own_figures() for run in self.runs]
        names = dict.fromkeys(name for figures in each for name in figures)
        return {name: float(np.mean([number(figures, name) for figures in each if name in figures])) for name in names}

    def notices(self) -> list[str]:
        """Envs that raised since the last time this was asked: all learners know of the same."""
        return self.runs[0].notices()

    def forget_totals(self) -> None:
        """Start the sums of the next line of metrics."""
        for run in self.runs:
            run.forget_totals()

    def forget_episodes(self) -> None:
        """Count episodes from 0 again."""
        self.episodes = 0

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes that all agents play together, on envs of their own."""
        first = self.runs[0]
        greedy = [run.greedy for run, rows in zip(self.runs, self.pipeline.rows, strict=True) for _ in rows.agents]
        seed, most = first.evaluation_seed(attempt), first.most_eval_steps()
        with one_blas_thread():
            played = play_team_on_host(self.spec, greedy, self.spec.evaluation.episodes, seed, most, tell)
        return played.by_agent if self.members.are_many else [played.of_all]

    def close(self) -> None:
        """Close the envs."""
        self.pipeline.close()

    def weights(self, index: int) -> Weights:
        """What one learner acts with."""
        return self.runs[index].weights(0)

    # -- checkpoints ------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        """All learners, counters, and of the envs what they let be saved; nothing of them amid a turn."""
        is_torn = any(run.actor.is_torn for run in self.runs)
        saved = to_arrays({TEAM: self._saved({} if is_torn else self.envs.arrays())})
        for name, run in zip(self.names, self.runs, strict=True):
            saved |= {f"{name}/{path}": array for path, array in run.arrays().items()}
        return saved

    def _saved(self, envs: TeamArrays) -> SavedTeam:
        return {"episodes": np.asarray(self.episodes), "blocks": np.asarray(self.blocks), "envs": envs}

    def restore(self, arrays: dict[str, np.ndarray]) -> list[str]:
        """Take back what `arrays` gave; returns what could not be restored, in words."""
        self.begin()
        of_team = {path: array for path, array in arrays.items() if path.startswith(f"{TEAM}/")}
        of_envs = {path: of_team.pop(path) for path in list(of_team) if path.startswith(f"{TEAM}/envs/")}
        counters = from_arrays({TEAM: self._saved({})}, of_team)[TEAM]
        self.episodes, self.blocks = int(counters["episodes"]), int(counters["blocks"])
        if unknown := sorted({path.partition("/")[0] for path in arrays} - {TEAM, *self.names}):
            raise ValueError(f"the checkpoint has unknown {unknown[:3]}, expected {len(self.runs)} learner(s)")
        parts = [_below(name, arrays) for name in self.names]
        self._reset()
        if all(any(path.startswith("replay/") for path in part) for part in parts):
            try:
                self.envs.restore(from_arrays({TEAM: {"envs": self.envs.arrays()}}, of_envs)[TEAM]["envs"])
            except ValueError:  # saved in the middle of a turn, or by an env that has changed
                self._reset()
        lost = [line for run, part in zip(self.runs, parts, strict=True) for line in run.restore(part)]
        if lost and self.envs.goes_on:  # one has lost its place among the others, so all begin anew
            self._reset()
            for run in self.runs:
                run.begin_episodes()
        return list(dict.fromkeys(lost))


def _below(name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    start = f"{name}/"
    return {path.removeprefix(start): array for path, array in arrays.items() if path.startswith(start)}
