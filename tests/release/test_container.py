"""Build the image without Docker, by carrying out the Dockerfile on overlay file systems, and run what compose.yml runs.

The machine's own root stands in for the base image. Every container has a read-only root, a /tmp of its own and the
image's user, so a write outside the documented folders fails here as it would there.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from holdfast.cli.worker import worker
from holdfast.config import Settings
from tests.builders import until
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yml").read_text())
KUBERNETES = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text()))
PODS = {
    item["metadata"]["name"]: item["spec"]["template"]["spec"]
    for item in KUBERNETES
    if item["kind"] == "Deployment"
}
GRACE: float = signature(worker).parameters["grace"].default
PORT: int = Settings.model_fields["port"].default
UID = 10001

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]


def _can_mount() -> bool:
    """Say whether this process may mount file systems in a namespace of its own."""
    return (
        shutil.which("unshare") is not None
        and subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    )


needs_mounts = pytest.mark.skipif(not _can_mount(), reason="needs root and `unshare --mount`")


def instructions() -> Iterator[tuple[str, str]]:
    """Yield the instructions of the Dockerfile, each as one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


@dataclass
class Stage:
    """One stage of the Dockerfile: what it added to the root, and the settings of its containers."""

    layer: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    folder: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list[str])
    command: list[str] = field(default_factory=list[str])
    health: list[str] = field(default_factory=list[str])

    @classmethod
    def start(cls, layer: Path) -> "Stage":
        """Return a stage with the interpreter of this test as that of the base image."""
        layer.mkdir(parents=True)
        interpreter = Path(sys.base_prefix)
        for folder in reversed(interpreter.parents[:-1]):  # such as /root, which others may not enter
            (layer / folder.relative_to("/")).mkdir(mode=0o755)
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        return cls(layer, kept | {"PATH": f"{interpreter}/bin:/usr/sbin:/usr/bin:/sbin:/bin"})

    def carry_out(self, name: str, rest: str, stages: Mapping[str, "Stage"]) -> None:
        match name:
            case "WORKDIR":
                self.folder = rest
                self._inside(rest).mkdir(parents=True, exist_ok=True)
            case "ENV":
                for pair in shlex.split(rest):
                    key, _, value = pair.partition("=")
                    self.environment[key] = Template(value).substitute(self.environment)
            case "COPY":
                *options, target = shlex.split(rest)
                stage = options.pop(0).removeprefix("--from=") if options[0].startswith("--from=") else None
                for source in options:
                    here = ROOT / source if stage is None else stages[stage]._inside(source)
                    self._copy(here, self._inside(os.path.join(self.folder, target)))  # noqa: PTH118 - target may be absolute
            case "RUN":
                subprocess.run(self.shell(rest, writable=True), check=True, timeout=500)
            case "USER":
                self.user = rest
            case "HEALTHCHECK":
                self.health = json.loads(rest.partition("CMD ")[2])
            case "ENTRYPOINT":
                self.entrypoint = json.loads(rest)
            case "CMD":
                self.command = json.loads(rest)
            case _:
                assert name in {"LABEL", "EXPOSE"}, f"the test does not know the instruction {name}"

    def shell(
        self,
        line: str,
        *,
        writable: bool = False,
        environment: Mapping[str, str] | None = None,
        files: Sequence[str] = (),
    ) -> list[str]:
        """Return the command that runs a line of shell in a container."""
        root = self.layer.with_name(self.layer.name + ".root")
        work = self.layer.with_name(self.layer.name + ".work")
        for folder in (root, work):
            folder.mkdir(exist_ok=True)
        layers = (
            f"lowerdir=/,upperdir={self.layer},workdir={work}" if writable else f"lowerdir={self.layer}:/"
        )
        user, group = self.user.split(":")
        variables = [f"{key}={value}" for key, value in (self.environment | dict(environment or {})).items()]
        mounts = [
            f"mount -t overlay overlay -o {layers} {root}",
            f"mount -t tmpfs tmpfs {root}/tmp",
            f"mount --rbind /dev {root}/dev",
            f"mount -t proc proc {root}/proc",
            *(
                f"mount --bind {source} {root}{target}"
                for source, target in (f.split(":")[:2] for f in files)
            ),
        ]
        enter = ["exec", "chroot", str(root), "setpriv", f"--reuid={user}", f"--regid={group}"]
        enter += ["--clear-groups", "--no-new-privs", "env", "-i", *variables]
        enter += ["sh", "-c", f"cd {self.folder} && {line}"]
        return ["unshare", "--mount", "sh", "-ec", "\n".join([*mounts, shlex.join(enter)])]

    def run(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        files: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a container to its end."""
        line = self.shell(f"exec {shlex.join(words)}", environment=environment, files=files)
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)

    def _inside(self, path: str) -> Path:
        return self.layer / path.lstrip("/")

    def _copy(self, source: Path, target: Path) -> None:
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__") if ROOT in source.parents else None
            shutil.copytree(source, target, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, target / source.name)


@pytest.fixture(scope="module")
def image() -> Generator[Stage, None, None]:
    stages: dict[str, Stage] = {}
    # Not on the root file system: no layer of an overlay may be inside another.
    layers = Path(tempfile.mkdtemp(prefix="holdfast-image-", dir="/dev/shm"))
    layers.chmod(0o755)
    try:
        name = ""
        for instruction, rest in instructions():
            if instruction == "FROM":
                name = rest.partition(" AS ")[2] or "image"
                stages[name] = Stage.start(layers / name)
            else:
                stages[name].carry_out(instruction, rest, stages)
        yield stages["image"]
    finally:
        shutil.rmtree(layers)


def filled(value: Any, variables: Mapping[str, str]) -> Any:
    """Return a part of compose.yml with `${NAME:?message}` filled in."""
    if isinstance(value, Mapping):
        return {str(key): filled(item, variables) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: variables[found[1]], value)


def variables_of_the_example() -> dict[str, str]:
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@dataclass
class Container:
    """A running service of compose.yml."""

    image: Stage
    environment: dict[str, str]
    process: asyncio.subprocess.Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.environment['HOLDFAST_PORT']}"

    async def is_healthy(self) -> bool:
        assert self.process.returncode is None, "the container ended"
        done = await asyncio.to_thread(self.image.run, self.image.health, environment=self.environment)
        return done.returncode == 0


@asynccontextmanager
async def container(image: Stage, service: str, store: str) -> AsyncGenerator[Container, None]:
    """Start a service of compose.yml on another store and a free port, with media in the database."""
    described = COMPOSE["services"][service]
    assert described["read_only"]
    assert described["tmpfs"] == ["/tmp"]
    port = str(free_port())
    environment = filled(described["environment"], variables_of_the_example())
    environment |= {"HOLDFAST_STORE": store, "HOLDFAST_MEDIA": "database", "HOLDFAST_PORT": port}
    words = [*image.entrypoint, *described.get("command", image.command)]
    words = [port if word == str(PORT) else word for word in words]
    files = [f"{ROOT}/{volume}" for volume in described.get("volumes", ())]
    for file in files:
        image._inside(file.split(":")[1]).touch()
    process = await asyncio.create_subprocess_exec(
        *image.shell(f"exec {shlex.join(words)}", environment=environment, files=files)
    )
    try:
        yield Container(image, environment, process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()


@needs_mounts
async def test_the_services_of_compose_answer_a_message_and_hand_over(image: Stage, postgres_url: str):
    async with container(image, "api", postgres_url) as api, container(image, "worker", postgres_url) as one:
        await until(api.is_healthy, 60)
        await until(one.is_healthy, 60)
        for service in (api, one):
            status = Path(f"/proc/{service.process.pid}/status").read_text()
            assert re.search(rf"^Uid:(\s+{UID}){{4}}$", status, re.MULTILINE)
            assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
        words = ["holdfast", "send", "talk", "hello", "--agent", "bot", "--wait"]
        asked = await asyncio.to_thread(
            image.run, words, environment=api.environment | {"HOLDFAST_URL": api.url}
        )
        assert asked.stdout.strip() == "Hello from a worker.", asked.stderr
        for service in (one, api):
            service.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(service.process.wait(), GRACE) == 0


@needs_mounts
def test_the_health_check_fails_without_a_server(image: Stage):
    done = image.run(image.health, environment={"HOLDFAST_PORT": str(free_port())})
    assert done.returncode != 0
    assert "ConnectionRefusedError" in done.stderr


@needs_mounts
def test_the_root_is_read_only_even_where_the_user_may_write(image: Stage):
    assert image._inside("/var/lib/holdfast").stat().st_uid == UID
    assert "Read-only file system" in image.run(["touch", "/var/lib/holdfast/file"]).stderr
    assert image.run(["touch", "/tmp/file"]).returncode == 0


@needs_mounts
def test_a_volume_is_enough_for_sqlite(image: Stage, tmp_path: Path):
    tmp_path.chmod(0o777)
    done = image.run([*image.entrypoint, "db", "upgrade"], files=[f"{tmp_path}:/var/lib/holdfast"])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "store.db").stat().st_uid == UID


@needs_mounts
def test_the_image_has_the_wheel_and_no_sources(image: Stage):
    done = image.run(["python", "-c", "import holdfast; print(holdfast.__file__)"])
    assert done.stdout.startswith("/opt/holdfast/lib/"), done.stderr
    assert not image._inside("/src").exists()
    assert not image._inside("/dist").exists()


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return int(number) * {"s": 1, "m": 60}[unit]


@pytest.mark.parametrize("service", ["api", "worker"])
def test_compose_waits_longer_than_a_worker_takes_to_hand_over(service: str):
    assert seconds(COMPOSE["services"][service]["stop_grace_period"]) >= GRACE + 10


def test_compose_needs_the_variables_of_the_example_and_no_others():
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yml").read_text()))
    assert used == set(variables_of_the_example())


def test_compose_starts_what_needs_a_service_once_that_is_healthy():
    for service in COMPOSE["services"].values():
        for name, need in service.get("depends_on", {}).items():
            assert need == {"condition": "service_healthy"}
            assert "healthcheck" in COMPOSE["services"][name]


@pytest.mark.parametrize("name", sorted(PODS))
def test_kubernetes_runs_the_image_as_it_is_meant(name: str):
    pod = PODS[name]
    (inside,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] >= GRACE + 10
    assert pod["securityContext"]["runAsUser"] == UID
    assert not pod["enableServiceLinks"]  # its variables are HOLDFAST_…, and an unknown one is an error
    assert inside["securityContext"]["readOnlyRootFilesystem"]
    assert inside["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    (port,) = inside["ports"]
    assert port["containerPort"] == PORT
    for probe in ("livenessProbe", "readinessProbe"):
        assert inside[probe]["httpGet"]["port"] == port["name"]


def test_kubernetes_keeps_one_of_each_when_a_node_is_drained():
    budgets = {
        item["spec"]["selector"]["matchLabels"]["app"] for item in KUBERNETES if "Budget" in item["kind"]
    }
    assert budgets == set(PODS)
