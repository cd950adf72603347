"""Env, engine and pipeline of a spec, wired together: the one place where they meet."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Self, TypedDict

from hotloop import registry
from hotloop.engines.by_shape import Shape, engines_by_shape
from hotloop.engines.protocol import Engine
from hotloop.engines.registered import registered_network
from hotloop.errors import SpecError
from hotloop.members import Members
from hotloop.registry import ENGINES, PIPELINES
from hotloop.spec import Agents, EpsilonGreedy, Network, Spec
from hotloop.spec.network import NOISE
from hotloop.spec.reading import OWN_ENV, given, parse_spec
from hotloop.spec.rules import is_set, only_on_the_host, refusal

if TYPE_CHECKING:
    from hotloop.engines.jax.modules import Module
    from hotloop.envs.device import DeviceEnv
    from hotloop.envs.gym_types import Given, Make
    from hotloop.envs.host import HostEnvs
    from hotloop.envs.host_spaces import HostSpaces
    from hotloop.envs.own import OwnEnv
    from hotloop.envs.team import TeamEnvs, TeamSpaces
    from hotloop.pipelines.session import Pipeline, Session, Stored


class PipelineChoice(NamedTuple):
    """Which pipeline runs, and why."""

    name: str
    reason: str
    is_measured: bool = False
    """Whether a trial has decided it (`pipeline_trial.py`)."""
    actors: int | None = None
    """With how many actors it was measured, if with any."""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


class Own(NamedTuple):
    """What a user brings along from Python instead of naming it in a spec."""

    network: "Module | None" = None
    env: "Given | None" = None
    """A device env, a Gymnasium env, or a function that makes one of the two (`envs/own.py`)."""
    explores_as_given: bool = False
    """The user has said how to explore, so it is not decided again for a network of their own."""


Update = Callable[..., object]
"""Gradient steps: `Engine.update`, on the device `JaxEngine.update`."""


class Replace(TypedDict, total=False):
    """The stand-ins of `Substitutes` by name, as many as there are."""

    env: "Given | None"
    replay: "Callable[..., Stored] | None"
    update: Callable[..., Update] | None
    log: bool


class Substitutes(NamedTuple):
    """What stands in for a stage of a run, to see what the stage costs; None leaves it as it is."""

    env: "Given | None" = None
    """As `Own.env`; called without the options of the env that it stands in for."""
    replay: "Callable[..., Stored] | None" = None
    """Called with the pipeline's replay (`replay.host.HostReplay`, on the device a `replay.device.DeviceReplay`), gives
    what is used instead."""
    update: Callable[..., Update] | None = None
    """Called with what learns (`Engine.update`, on the device `JaxEngine.update`), gives what is called instead."""
    log: bool = True
    """Whether lines of metrics are written: the one who drives the session does."""

    def put_into(self, pipeline: "Pipeline", on_device: bool) -> None:
        """Replace the replay and the update of a pipeline that has no session yet."""
        from hotloop.pipelines.stand_ins import CheckedUpdate

        for name, make in (("replay", self.replay), ("update", self.update)):
            if make is None:
                continue
            if isinstance(getattr(pipeline, "learners", None), list):
                raise SpecError(f"replace: {name} is not replaced where several agents learn on the host")
            if not callable(make):
                raise SpecError(f"replace: {name} is {make!r}, expected a function that is given the run's own {name}")
            if getattr(pipeline, name, None) is None:
                raise SpecError(f"replace: this run has no {name}")
            made: object = make(getattr(pipeline, name))
            if not (callable(made) if name == "update" else callable(getattr(made, "sample", None))):
                raise SpecError(f"replace: {name} gave {made!r}, expected what stands in for the run's own {name}")
            setattr(pipeline, name, CheckedUpdate(made, on_device) if name == "update" and callable(made) else made)


def _with_own_network(spec: Spec, own: Own) -> tuple[Spec, list[str]]:
    """The spec with the user's own network named in it, checked again, and what it thereby loses, in words."""
    data = given(spec)
    named = own.network if isinstance(own.network, type) else type(own.network)
    name = named.__qualname__
    if registry.is_known(registry.NETWORKS, name):  # which is another one, for all that anyone knows
        name = f"{named.__module__}.{name}"  # no name that can be registered
    data["network"] = {"kind": "custom", "name": name}
    lost = spec.network.head.beyond_q_values if isinstance(spec.network, Network) else []
    if not lost:
        return parse_spec(data), []
    said = f"a network of your own gives one Q-value per action; left out of this spec's head: {', '.join(lost)}"
    if NOISE in lost and not own.explores_as_given and _never_explores(spec):
        data.pop("exploration", None)
        how = "from {start:g} to {end:g} in {steps:,} env steps".format(**EpsilonGreedy().epsilon.model_dump())
        said += f"; where noise explored, ε does now, {how} (give exploration for another)"
    return parse_spec(data), [said]


def _never_explores(spec: Spec) -> bool:
    schedule = spec.exploration_schedule.model_dump()
    return all(schedule.get(name, 0) == 0 for name in ("value", "start", "end"))


def _with_env(spec: Spec, **changes: object) -> Spec:
    return spec.model_copy(update={"env": spec.env.model_copy(update=changes)})


def _never_evaluated(spec: Spec) -> tuple[Spec, list[str]]:
    """The spec without evaluations, for an env of which there is one only, and what that means, in words."""
    if not spec.evaluation.every:
        return spec, []
    goal = spec.stop.return_at_least
    said = "there are no evaluations and no best weights" + ("" if goal is None else ", so no goal ends the run")
    none = {
        "evaluation": spec.evaluation.model_copy(update={"every": 0}),
        "stop": spec.stop.model_copy(update={"return_at_least": None}),
    }
    name = spec.env.id.removeprefix(OWN_ENV)
    return spec.model_copy(update=none), [f"the env ({name}) cannot be copied: {said}; give a factory that makes it"]


def _own_env_of(spec: Spec, own: Own) -> "OwnEnv | None":
    """The user's own env as this spec's engine takes it, if there is one."""
    if own.env is None:
        if spec.env.id.startswith(OWN_ENV):
            raise SpecError(
                f"this run was trained on an env of your own ({spec.env.id.removeprefix(OWN_ENV)}); pass it again "
                "from Python: device_env=… or env=…"
            )
        return None
    from hotloop.envs.own import stepped_on_host, understand

    found = understand(own.env, spec.env.options)
    on_host = not ENGINES[spec.engine].has_programs or registry.opens_envs_elsewhere(spec.pipeline)
    return stepped_on_host(found) if on_host else found


def _steps_on_device(spec: Spec, own_env: "OwnEnv | None") -> bool:
    if own_env is not None:
        return own_env.device is not None
    return registry.steps_on_device(spec.env.id, spec.engine, spec.pipeline)


def _has_agents(spec: Spec, own_env: "OwnEnv | None") -> bool:
    """Whether several agents act in the env."""
    if own_env is None:
        return registry.has_agents(spec.env.id)
    return own_env.has_agents


def _with_agents(spec: Spec, own_env: "OwnEnv | None") -> Spec:
    """The spec with a section of agents where the env has several, and without one where it has not."""
    if not _has_agents(spec, own_env):
        if spec.agents is not None:
            raise SpecError(f"agents is for an env in which several act, but {spec.env.id} has one; leave it out")
        return spec
    spec = spec.model_copy(update={"agents": spec.agents or Agents()})
    if reason := refusal(spec):
        raise SpecError(reason)
    return spec


def trains_in_turn(spec: Spec, own: Own) -> bool:
    """Whether it is several seeds that are trained one after the other (`seeds_in_turn.py`).

    Those of envs on the host are, and those of several agents: they fill the devices already.
    """
    own_env = _own_env_of(spec, own)
    return spec.seeds > 1 and (_has_agents(spec, own_env) or not _steps_on_device(spec, own_env))


class Player:
    """Env and engine of a spec, to play with trained weights. Starts its engine; leaves no Gymnasium env open.

    Of several seeds that are trained one after the other it is the first.
    """

    env: "DeviceEnv | HostSpaces | TeamSpaces"
    """A device env, or the spaces of an env on the host: those of its agent, or of its agents."""
    _measured: PipelineChoice | None = None

    def __init__(self, spec: Spec, own: Own | None = None) -> None:
        self.own = own = own or Own()
        self.notices: list[str] = []  # what a person should know before this is trained
        if own.network is not None:
            spec, self.notices = _with_own_network(spec, own)
        self.spec = _with_agents(self._with_own_env(spec, own), self._own_env)
        self.on_device = _steps_on_device(self.spec, self._own_env)
        if self.spec.seeds > 1 and (self.spec.agents is not None or not self.on_device):
            self.spec = self.spec.with_field("seeds", 1)
        self.pipeline_choice = self._choose_pipeline()
        network = own.network if own.network is not None else registered_network(self.spec)
        record = ENGINES[self.spec.engine]
        overlaps = PIPELINES[self.pipeline_choice.name].steps_meanwhile
        # Started before it is imported: what it needs and is not there is said, and threads are chosen, first.
        self.machine: dict[str, str] = registry.imported(record.start)(self.spec, steps_meanwhile=overlaps)
        make = registry.imported(record.make)
        shapes = self._make_env()
        try:
            self.engines: list[Engine] = engines_by_shape(
                lambda obs, num_actions: make(self.spec, obs, num_actions, network), shapes
            )
        except ValueError as error:
            raise SpecError(f"network: {error}") from error.__cause__  # of a plug-in: what it raised itself
        self.engine = self.engines[0]
        """That of the only member, or of the first."""

    def engine_of(self, index: int) -> Engine:
        """The engine of one member; members of one program share theirs."""
        return self.engines[index] if len(self.engines) > 1 else self.engine

    def _with_own_env(self, spec: Spec, own: Own) -> Spec:
        """The spec with the user's own env named in it, if there is one."""
        self._own_env = found = _own_env_of(spec, own)
        if found is None:
            return spec
        spec = _with_env(spec, id=found.played or f"{OWN_ENV}{found.name}")
        if found.is_instance and not is_set(spec, "env.num_envs"):
            spec = _with_env(spec, num_envs=1)
        if not found.can_be_played:
            spec, said = _never_evaluated(spec)
            self.notices += said
        return spec

    @property
    def has_one_env_only(self) -> bool:
        """Whether it is trained on an instance that the user made."""
        return self._own_env is not None and self._own_env.is_instance

    @property
    def _trained_env_id(self) -> str:
        """What makes the envs that are trained on: one of the user's own may be lent instead of made."""
        return (self._own_env and self._own_env.trained) or self.spec.env.id

    def _make_env(self) -> list[Shape]:
        """Build `env`; returns what engines are made for: one for each learner on the host, else one for all."""
        if self.on_device:
            from hotloop.envs.device import make_env, obs_shapes
            from hotloop.envs.device_contract import require_contract

            own, env = self._own_env, self.spec.env
            self.env = make_env(env.id, env.options) if own is None or own.device is None else own.device
            require_contract(self.env)
            if hasattr(self.env, "num_agents") and self.spec.agents is None:
                raise SpecError(f"env.id: {env.id} has several agents; register it with Entry(…, has_agents=True)")
            self._name_agents(getattr(self.env, "agent_names", ()))
            return [Shape(obs_shapes(self.env), self.env.num_actions)]
        self.spec = self._with_figures()
        if self.spec.agents is not None:
            return self._make_team()
        self.env = self._look_at_host_env()
        return [Shape(self.env.observations.shapes, self.env.actions.size)]

    def _with_figures(self) -> Spec:
        """The spec that asks a device env for all its figures, where it is stepped from the host and none are named."""
        from hotloop.envs.own import device_env_of

        env_id, env = self._trained_env_id, self.spec.env
        if is_set(self.spec, "env.info") or (device := device_env_of(env_id, env.options)) is None:
            return self.spec
        from hotloop.envs.device import figures_of
        from hotloop.envs.device_contract import require_contract

        require_contract(device)
        return _with_env(self.spec, info=figures_of(device))

    def _make_team(self) -> list[Shape]:
        """As `_make_env`, of an env on the host with several agents."""
        self.env = spaces = self._look_at_team()
        self._name_agents(spaces.names)
        shapes = [Shape(each.observations.shapes, each.actions.size) for each in spaces.each]
        if self.spec.has_shared_weights:
            if unlike := spaces.unlike():
                one, other = unlike
                raise SpecError(
                    f"agents.weights is shared, but {one} and {other} have other observations or actions; use own"
                )
            return shapes[:1]
        if self.spec.engine == "torch" and self.spec.torch.mode == "auto" and any(one != shapes[0] for one in shapes):
            self.spec = self.spec.with_field("torch.mode", "eager")  # what is measured for one need not hold for all
            self.notices.append("torch.mode: eager, as the agents' networks are of several shapes")
        return shapes

    def _name_agents(self, names: tuple[str, ...]) -> None:
        """Write down who acts in the env; a run that was trained with others is refused."""
        agents = self.spec.agents
        if agents is None:
            return
        if agents.names not in ((), names):
            raise SpecError(
                f"the spec is for {len(agents.names)} agents ({_few(agents.names)}), but the env has {len(names)}: "
                f"{_few(names)} (agents.names is found out by itself; leave it out)"
            )
        self.spec = self.spec.model_copy(update={"agents": agents.model_copy(update={"names": names})})

    def _look_at_host_env(self) -> "HostSpaces":
        """The spaces of a Gymnasium env, of which one is made and closed again."""
        envs = self.open_one_env()
        envs.close()
        return envs.spaces

    def open_one_env(self) -> "HostEnvs":
        """One Gymnasium env as those that are trained on, in this process; whoever asked closes it."""
        now = self.spec.env.vectorization
        return self.open_envs(1, "sync" if now in ("threads", "async") else now)

    def open_envs(self, count: int, vectorization: str) -> "HostEnvs":
        """So many Gymnasium envs as those that are trained on, multiplied in this way; whoever asked closes them."""
        from hotloop.envs.host import open_envs

        env = self.spec.env
        return open_envs(self._trained_env_id, count, env.options, vectorization, observe=env.observe)

    def _look_at_team(self) -> "TeamSpaces":
        """The spaces of an env with several agents, of which one is made and closed again."""
        team = self.open_team(1)
        team.close()
        return team.spaces

    def open_team(self, num_envs: int, **changes: object) -> "TeamEnvs":
        """So many envs with several agents as those that are trained on; whoever asked closes them."""
        from hotloop.envs.team import open_team

        env = self.spec.env
        return open_team(env.id, num_envs, {**env.options, **changes}, env.vectorization, env.info, env.observe)

    def _choose_pipeline(self) -> PipelineChoice:
        spec, wanted = self.spec, self.spec.pipeline
        kind = "a device env" if self.on_device else "a Gymnasium env, stepped on the host"
        if not self.on_device and registry.is_device_env(spec.env.id):
            who = f"pipeline {wanted}" if registry.opens_envs_elsewhere(wanted) else f"engine {spec.engine}"
            kind = f"a device env, which {who} steps from the host"
        elif spec.agents is not None:
            where = "in a program on the device" if self.on_device else "on the host"
            kind = f"one with several agents, stepped {where}"
        fitting = [name for name in PIPELINES if self._serves(name)]
        if wanted not in ("auto", *fitting):
            raise SpecError(
                f"pipeline {wanted} does not serve {spec.env.id}, which is {kind}; use {', '.join(fitting)} or auto"
            )
        if self.on_device and (unserved := only_on_the_host(spec)):
            why = "their replay is on the device and stores whole transitions"
            if unserved.startswith("evaluation."):
                why = "their evaluations are one program on the device"
            raise SpecError(f"{unserved} is not for device envs: {why}; train on the Gymnasium form of the env")
        if unserved := self._only_in_one_program():
            raise SpecError(
                f"{unserved} is for device envs and pipeline fused, but {spec.env.id} is {kind}, with pipeline "
                f"{wanted}; leave {unserved} out"
            )
        if wanted != "auto":
            return self._measured or PipelineChoice(wanted, "as the spec says")
        if spec.describes_actors and (self.on_device or spec.agents is not None):
            raise SpecError(
                f"actors are for pipeline processes, but pipeline auto has none for {spec.env.id}, which is {kind}; "
                "add pipeline: processes if it serves the env, or leave actors out"
            )
        if self.on_device:
            return PipelineChoice("fused", f"the env is {kind}")
        if spec.turns is not None:
            return PipelineChoice("sync", "whether to learn is decided after each vector step (turns)")
        if spec.sees_images and spec.agents is None:
            why = f"the env is {kind}, and learning from images takes long enough to step meanwhile"
            return PipelineChoice("concurrent", why)
        return PipelineChoice("sync", f"the env is {kind}")

    def _makers(self, pipeline: str) -> Mapping[str, str]:
        """Who makes a pipeline for envs as these, by what is learned from."""
        record = PIPELINES[pipeline]
        return record.on_device if self.on_device else record.on_host

    def _serves(self, pipeline: str) -> bool:
        """Whether a pipeline is for envs as these."""
        return bool(self._makers(pipeline)) if self.spec.agents is None else "joint" in self._makers(pipeline)

    def _only_in_one_program(self) -> str | None:
        """A choice that only the fused pipeline knows, where another would run."""
        wanted = self.spec.pipeline
        if wanted == "auto":
            wanted = "fused" if self.on_device else "sync"
        if self.spec.learns_from in self._makers(wanted):
            return None
        return "on_policy" if self.spec.on_policy else "network.core"


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")


class Assembly(Player):
    """What a spec asks for, built but not compiled. Has Gymnasium envs open until it is closed."""

    envs: "HostEnvs | None" = None
    team: "TeamEnvs | None" = None
    pipeline: "Pipeline"

    def __init__(
        self,
        spec: Spec,
        own: Own | None = None,
        substitutes: Substitutes | None = None,
        measured: PipelineChoice | None = None,
    ) -> None:
        """`measured` is the spec's pipeline where a trial has chosen it."""
        substitutes, self._measured = substitutes or Substitutes(), measured
        if substitutes.env is not None:
            spec, own = _with_env(spec, options={}), (own or Own())._replace(env=substitutes.env)
        try:
            super().__init__(spec, own)
            self.pipeline = self._make_pipeline()
            substitutes.put_into(self.pipeline, self.on_device)
        except BaseException:
            self.close()
            raise

    def _make_pipeline(self) -> "Pipeline":
        name = self.pipeline_choice.name
        if registry.opens_envs_elsewhere(name):
            return self._in_processes(name, self.spec)
        make = registry.imported(self._makers(name)[self.spec.learns_from])
        if self.team is not None:
            joint: Pipeline = make(self.spec, self.team, self.engines)
            return joint
        of = (self.env, self.engine.device_functions) if self.envs is None else (self.envs, self.engine)
        if of[1] is None:
            raise SpecError(f"engine {self.spec.engine} has no programs for device envs, and {self.spec.env.id} is one")
        made: Pipeline = make(self.spec, *of)
        return made

    def _in_processes(self, name: str, spec: Spec) -> "Pipeline":
        """A pipeline that opens the envs elsewhere."""
        make = registry.imported(PIPELINES[name].on_host[spec.learns_from])
        learns = self.engine if spec.agents is None else self.engines
        made: Pipeline = make(spec, self.env, learns, self._brought_make, self.own.network)
        return made

    @property
    def _brought_make(self) -> "Make | None":
        """What makes the envs that are trained on, where the user brought it along."""
        return self._own_env.trained.make if self._own_env and self._own_env.trained else None

    def require_that_envs_can_be_elsewhere(self, name: str) -> None:
        """Raise SpecError if a pipeline that opens envs elsewhere could not serve these; starts none."""
        from hotloop.pipelines.actor_process import duty_of, pack

        spec = self.spec.with_field("pipeline", name)
        if reason := refusal(spec):
            raise SpecError(reason)
        self._in_processes(name, spec)
        pack(duty_of(spec, self._brought_make, self.own.network, [True]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what outlives a run: envs, their processes, the learner's thread, devices."""
        for engine in {id(engine): engine for engine in getattr(self, "engines", ())}.values():
            engine.close()
        if hasattr(self, "pipeline"):
            self.pipeline.close()
        for envs in (self.envs, self.team):
            if envs is not None:
                envs.close()

    def _look_at_host_env(self) -> "HostSpaces":
        """The spaces of the envs that are trained on, which stay open."""
        from hotloop.envs.host import open_envs

        env = self.spec.env
        if registry.opens_envs_elsewhere(self.pipeline_choice.name):
            if self._own_env is not None and self._own_env.is_instance:
                raise SpecError(
                    f"env is one instance of {self._own_env.name}, which stays in this process; give a factory, a "
                    "function that makes such an env, or use pipeline sync"
                )
            spaces = super()._look_at_host_env()
            self._check_evaluation(spaces)
            return spaces
        if self._own_env is not None and self._own_env.is_instance:
            self._refuse_several(self._own_env.name)
        infos = self.spec.info_of_steps
        self.envs = open_envs(self._trained_env_id, env.num_envs, env.options, env.vectorization, infos, env.observe)
        self._check_evaluation(self.envs.spaces)
        return self.envs.spaces

    def _look_at_team(self) -> "TeamSpaces":
        """The spaces of the envs that are trained on, which stay open if they are stepped here."""
        if registry.opens_envs_elsewhere(self.pipeline_choice.name):
            spaces = super()._look_at_team()
        else:
            self.team = self.open_team(self.spec.env.num_envs)
            spaces = self.team.spaces
        changes = self.spec.evaluation.options
        if changes and self.spec.evaluation.every:
            try:
                played = self.open_team(1, **changes)
            except SpecError as error:
                raise SpecError(f"evaluation.options: {error}") from None
            played.close()
            self._require_same(played.spaces.are_those_of(spaces))
        return spaces

    def _refuse_several(self, name: str) -> None:
        """One env can be neither many nor elsewhere."""
        env = self.spec.env
        remedy = "give a factory, a function that makes such an env"
        if env.num_envs != 1:
            raise SpecError(
                f"env is one instance of {name}, but env.num_envs is {env.num_envs}; {remedy}, or set env.num_envs to 1"
            )
        if env.vectorization == "async":
            raise SpecError(f"env is one instance of {name}, which stays in this process, not async; {remedy}")
        if self.spec.evaluation.options:
            raise SpecError(f"env is one instance of {name}: evaluation.options are for what makes an env; {remedy}")

    def _check_evaluation(self, trained: "HostSpaces") -> None:
        """Refuse options of evaluations now instead of at the first one."""
        from hotloop.envs.host import make_vector_env

        env, changes = self.spec.env, self.spec.evaluation.options
        if not changes or not self.spec.evaluation.every:
            return
        try:
            played = make_vector_env(env.id, 1, {**env.options, **changes}, env.vectorization, observe=env.observe)
        except SpecError as error:
            raise SpecError(f"evaluation.options: {error}") from None
        are_same = played.single_observation_space == trained.observation
        are_same &= played.single_action_space == trained.action
        played.close()
        self._require_same(are_same)

    def _require_same(self, are_same: bool) -> None:
        if not are_same:
            raise SpecError(
                "evaluation.options change what the agent sees or does; only rewards and endings may differ"
            )

    def session(self, members: Members) -> "Session":
        """The pipeline with its state, for the host loop to drive."""
        return self.pipeline.session(members)
