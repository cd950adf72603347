"""Several agents in envs in this process: a `HostRun` for each learner, and one turn of the envs for all of them."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from hotloop.engines.protocol import Engine
from hotloop.envs.team import Rows, TeamArrays, TeamEnvs, agents_of_learners
from hotloop.errors import SpecError
from hotloop.members import Members, seeds
from hotloop.pipelines.host_run import HostPipeline, HostRun
from hotloop.pipelines.learning_run import STAGES
from hotloop.pipelines.sync import learn_if_due
from hotloop.pipelines.team_names import TEAM
from hotloop.pipelines.team_run import TeamRun
from hotloop.replay.host import HostReplay
from hotloop.runs.state import from_arrays, to_arrays
from hotloop.spans import Spans
from hotloop.spec import Spec


class HostTeamPipeline:
    """Shapes and sizes of the learners of a team; one engine for each, or the same for those of the same shapes."""

    def __init__(self, spec: Spec, envs: TeamEnvs, engines: Sequence[Engine]) -> None:
        self.spec, self.envs = spec, envs
        self.rows = [Rows(envs, agents) for agents in agents_of_learners(envs.spaces, spec)]
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


class HostTeam(TeamRun[HostRun]):
    """The learners of a team beside their envs."""

    def __init__(self, pipeline: HostTeamPipeline, members: Members) -> None:
        super().__init__(pipeline.spec, pipeline.envs.spaces, members, Spans(*STAGES))
        self.pipeline, self.envs = pipeline, pipeline.envs
        pairs = zip(pipeline.learners, self.seeds, strict=True)
        self.runs = [HostRun(learner, seeds([seed]), self.spans) for learner, seed in pairs]

    def begin(self) -> None:
        """Fresh weights, empty replays, an episode begun in every env."""
        self.episodes = self.blocks = 0
        self._reset()
        for run in self.runs:
            run.begin()

    def _reset(self) -> None:
        seed = int(np.random.SeedSequence([self.spec.seed, self.blocks, 0, 0]).generate_state(1)[0])
        self.envs.reset(seed)

    def run_block(self) -> bool:
        """q turns with the weights of the block's start, then the gradient steps that each learner has earned."""
        before, transitions = self.env_steps, np.zeros(len(self.runs), np.int64)
        for _ in range(self.block_plan.vector_steps):
            transitions += self.take_turn()
        if self.spec.has_shared_weights:
            transitions[:] = self.env_steps - before
        self.learn(transitions.tolist())
        return True

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

    def close(self) -> None:
        """Close the envs."""
        self.pipeline.close()

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
        parts = self.parts(arrays)
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
