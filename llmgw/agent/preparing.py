"""From a StartShard to the command line and environment that are launched, or why there are none.

Everything that looks at the node's files is here, in one blocking call (`prepare`) that its caller keeps off the event
loop: models and secrets may be on a file server that is away.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from llmgw.agent.launch import LaunchRequest
from llmgw.core.catalog import Profile, Secret
from llmgw.core.hardware import Fabric, Gpu, NodeHardware
from llmgw.core.held import Spec
from llmgw.core.lifecycle import Cause
from llmgw.core.secrecy import names_secret
from llmgw.engines.base import Assignment, Engine, Machine, Refusal
from llmgw.errors import EngineError
from llmgw.logs import redactor
from llmgw.wire.messages import StartShard

SECRET_BYTES_MAX = 64 * 1024
"""Half of what the kernel takes as one variable; a key file with its chain is a tenth of that."""


class UnpreparedError(EngineError):
    """The shard cannot be launched on this node, and nothing of it is there."""

    def __init__(self, cause: Cause, error: str) -> None:
        super().__init__(error)
        self.cause = cause


def spec_of(command: StartShard, *, host: str, port: int, rendezvous_port: int | None) -> Spec:
    """What is kept of the command."""
    profile = command.profile
    return Spec(
        shard=command.shard,
        epoch=command.epoch,
        spec_hash=command.spec_hash,
        engine=profile.engine,
        served_name=command.served_name,
        probe=profile.probe,
        listener_check=profile.listener_check,
        gpus=command.gpus,
        host=host,
        port=port,
        rendezvous_port=rendezvous_port,
        start_deadline=profile.start_deadline,
        stop_grace=profile.stop_grace,
        key=command.key,
    )


def prepare(
    command: StartShard, spec: Spec, hardware: NodeHardware, machine: Machine, engines: Mapping[str, Engine]
) -> LaunchRequest:
    """What to launch; its `state` is empty. UnpreparedError. Blocks on files, and changes nothing."""
    engine = engines.get(command.profile.engine)
    if engine is None:
        known = ", ".join(sorted(engines))
        error = f"profile.engine: this agent does not know the engine {command.profile.engine!r}, only {known}"
        raise UnpreparedError(Cause.BAD_PROFILE, error)
    profile = attrs.evolve(command.profile, model=model_on_node(command.profile.model, machine.models_dir))
    assignment = Assignment(
        port=spec.port,
        served_name=command.served_name,
        host=spec.host,
        gpus=tuple(_gpu(hardware, uuid) for uuid in command.gpus),
        env=environment(profile),
        key=command.key,
        rank=command.rank,
        peers=command.peers,
        rendezvous_port=spec.rendezvous_port,
        fabric=_fabric(hardware, command.fabric),
    )
    launch = engine.launch(profile, assignment, machine)
    if isinstance(launch, Refusal):
        raise UnpreparedError(Cause.BAD_PROFILE, launch.reason)
    return LaunchRequest(
        shard=spec.shard,
        epoch=spec.epoch,
        argv=launch.argv,
        env=launch.env,
        port=spec.port,
        other_ports=() if spec.rendezvous_port is None else (spec.rendezvous_port,),
        grace_seconds=stop_grace(engine, spec.stop_grace),
        second_term=engine.second_term_seconds is not None,
    )


def stop_grace(engine: Engine | None, grace_seconds: float) -> float:
    """How long to wait after SIGTERM. An engine that is known to hang has no use for a longer grace than it takes to
    find out: a second SIGTERM ends it.
    """
    second_term = engine.second_term_seconds if engine is not None else None
    return grace_seconds if second_term is None else min(grace_seconds, second_term)


def model_on_node(model: str, models_dir: str) -> str:
    """Absolute where it is in `models_dir`; a hub id and an absolute path stay as they are."""
    path = os.path.join(models_dir, model)  # noqa: PTH118  a Path would lose a trailing slash, and "" is no path
    return path if model and os.path.exists(path) else model  # noqa: PTH110


def environment(profile: Profile) -> dict[str, str]:
    """`profile.env` with every secret read from its file. UnpreparedError, which names files and shows no value."""
    values = {}
    for name, value in profile.env.items():
        values[name] = _secret(name, value) if isinstance(value, Secret) else value
        if isinstance(value, Secret) or names_secret(name):
            redactor.register(values[name])
    return values


def _secret(name: str, secret: Secret) -> str:
    path = Path(secret.file)
    where = f"profile.env.{name}: the file {secret.file}"
    if not path.is_absolute():
        error = f"{where} is not named by an absolute path"
        raise UnpreparedError(Cause.BAD_PROFILE, error)
    try:
        with path.open("rb") as opened:
            data = opened.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise UnpreparedError(Cause.BAD_PROFILE, f"{where} cannot be read: {error.strerror}") from None
    if len(data) > SECRET_BYTES_MAX:
        raise UnpreparedError(Cause.BAD_PROFILE, f"{where} is longer than {SECRET_BYTES_MAX} bytes")
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UnpreparedError(Cause.BAD_PROFILE, f"{where} is not UTF-8 text") from None
    if not text or "\0" in text:
        raise UnpreparedError(Cause.BAD_PROFILE, f"{where} {'has a NUL in it' if text else 'is empty'}")
    return text


def _gpu(hardware: NodeHardware, uuid: str) -> Gpu:
    gpu = hardware.gpu(uuid)
    if gpu is None:
        raise UnpreparedError(Cause.LAUNCH, f"{uuid} is not on this node now")
    return gpu


def _fabric(hardware: NodeHardware, name: str) -> Fabric | None:
    if not name:
        return None
    fabric = next((fabric for fabric in hardware.fabrics if fabric.name == name), None)
    if fabric is None:
        raise UnpreparedError(Cause.LAUNCH, f"this node is not on the fabric {name!r}")
    return fabric
