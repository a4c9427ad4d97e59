"""Install the wheel into empty environments, with and without extras, and use it as a user does."""

import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.request import urlopen

import pytest

import holdfast

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
NONE = frozenset[str]()
FRAMEWORKS = frozenset({"adk", "claude-agent-sdk", "harness", "langgraph", "openai-agents"})
"""The extras of the adapters, several hundred megabytes in all. `make frameworks-test` installs them."""
EXTRAS = (
    frozenset[str](tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    - FRAMEWORKS
)
EACH = [NONE, *(frozenset({extra}) for extra in sorted(EXTRAS)), EXTRAS]
USES = {
    "ag-ui": "from holdfast.server.formats import stream_factory; stream_factory('ag-ui', 's1')",
    "credentials": (
        "from holdfast.runtime.credentials import Credentials, new_key; Credentials(holdfast.open_store(), new_key())"
    ),
    "mongo": "holdfast.open_store('mongodb://localhost/holdfast')",
    "postgres": "holdfast.open_store('postgresql://localhost/holdfast')",
    "s3": "from holdfast.media import open_media; open_media('s3://bucket', store=holdfast.open_store())",
    "server": "import holdfast.server",
    "testing": "import holdfast.testing.media",
}
"""The shortest code that needs each extra."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment that has the wheel with some extras, and an empty working folder."""

    path: Path
    extras: frozenset[str]

    def command(self, *words: str) -> list[str]:
        return [str(self.path / "bin" / words[0]), *words[1:]]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), cwd=self.path, capture_output=True, text=True, check=False, timeout=120
        )

    @contextmanager
    def start(self, *words: str) -> Generator[subprocess.Popen[str], None, None]:
        with subprocess.Popen(
            self.command(*words), cwd=self.path, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.terminate()


def uv(*words: str | Path) -> None:
    found = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    assert found, "uv is not installed"
    subprocess.run([found, *words], cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--build-constraint", "constraints.txt", "--out-dir", folder)
    return folder


@pytest.fixture(scope="module")
def install(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[frozenset[str]], Environment]:
    """Return a function that installs the wheel with these extras, once per set of extras."""
    (wheel,) = dist.glob("*.whl")

    @cache
    def install(extras: frozenset[str]) -> Environment:
        path = tmp_path_factory.mktemp("environment")
        uv("venv", "--quiet", "--allow-existing", "--python", sys.executable, path)
        wanted = f"holdfast[{','.join(extras)}] @ {wheel.as_uri()}"
        uv("pip", "install", "--quiet", "--python", path, "-c", "constraints.txt", wanted)
        return Environment(path, extras)

    return install


@pytest.fixture
def environment(
    request: pytest.FixtureRequest, install: Callable[[frozenset[str]], Environment]
) -> Environment:
    return install(request.param)


def with_extras(*choices: frozenset[str]) -> pytest.MarkDecorator:
    ids = ["+".join(sorted(extras)) or "none" for extras in choices]
    return pytest.mark.parametrize("environment", choices, ids=ids, indirect=True)


def test_the_sdist_is_the_repository(dist: Path):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert packed == {*listed.stdout.splitlines(), "PKG-INFO"}


def test_the_installation_of_the_readme_works(tmp_path: Path):
    create, activate, install = re.findall(r"^    (.+)$", README.partition("## Install")[2], re.MULTILINE)[:3]
    checkout = install.replace("'.[", f"'{ROOT}[")
    assert (create, checkout != install) == ("python3 -m venv .venv", True)
    script = f"{sys.executable} -m venv .venv && {activate}\n {checkout}\n holdfast --version"
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.endswith(f"holdfast {holdfast.__version__}\n"), done.stderr


@with_extras(*EACH)
def test_the_package_imports_without_loading_pydantic(environment: Environment):
    code = "import holdfast, sys; print(holdfast.__version__, 'pydantic' in sys.modules)"
    done = environment.run("python", "-c", code)
    assert (done.stdout, done.stderr) == (f"{holdfast.__version__} False\n", "")


@with_extras(*EACH)
def test_the_command_starts(environment: Environment):
    assert environment.run("holdfast", "--version").stdout == f"holdfast {holdfast.__version__}\n"
    done = environment.run("holdfast", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Durable sessions for AI agents." in done.stdout


@with_extras(*EACH)
def test_the_readme_example_runs(environment: Environment):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = environment.run("python", "-c", example)
    assert done.stdout.endswith("15 submission_done\n"), done.stderr


@with_extras(NONE)
def test_the_readme_worker_answers(environment: Environment):
    agent, _, commands = README.partition("into `bot.py`")[2].partition("Start a worker")
    lines = [line[4:] for line in agent.splitlines() if line.startswith("    ") or not line]
    (environment.path / "bot.py").write_text("\n".join(lines))
    start, send, tail = re.findall(r"^    (holdfast .+)$", commands, re.MULTILINE)[:3]
    with environment.start(*shlex.split(start)):
        sent = environment.run(*shlex.split(send, comments=True))
    assert sent.stdout.endswith("Hello, Ada.\n"), sent.stderr
    assert "run_completed" in environment.run(*shlex.split(tail, comments=True)).stdout


@with_extras(*EACH)
def test_a_missing_extra_is_named(environment: Environment):
    installed = environment.extras
    if "server" in installed:
        installed |= {"credentials"}  # PyJWT installs cryptography
    for extra, code in USES.items():
        missing = {extra} - installed
        if extra == "ag-ui" and "server" not in installed:
            missing = {"server"}  # the format is a feature of the server
        done = environment.run("python", "-c", f"import holdfast; {code}")
        expected = [f"holdfast.errors.MissingExtra: {message(name)}" for name in missing]
        assert done.stderr.splitlines()[-1:] == expected


def message(extra: str) -> str:
    return f"This feature requires the extra `{extra}`. Install it with: pip install 'holdfast[{extra}]'"


@with_extras(NONE)
@pytest.mark.parametrize("command", ["demo", "serve bot:agent", "token create --owner ada"])
def test_a_command_names_its_missing_extra(environment: Environment, command: str):
    done = environment.run("holdfast", *command.split())
    assert (done.returncode, done.stderr) == (2, f"error: {message('server')}\n")


@with_extras(frozenset({"server"}), EXTRAS)
def test_the_demo_serves(environment: Environment):
    with environment.start("holdfast", "demo") as demo:
        assert demo.stdout
        said = next(line for line in demo.stdout if "serves at" in line)
        address = said.split()[-1].partition("?")[0]
        with urlopen(f"{address}health") as answer:
            assert answer.status == 200
