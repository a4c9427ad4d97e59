"""The docs say what the code does: a command, setting or method that is not documented fails here."""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from docs.site import PAGES as SITE_PAGES
from docs.site import slug
from holdfast.cli import app
from holdfast.config import PREFIX, Settings, load_settings
from holdfast.policy import RetentionPolicy
from holdfast.server.app import create_app
from holdfast.shell import ShellService
from holdfast.store import open_store
from holdfast.store.sqlite import writer
from holdfast.tables import BY_NAME, TABLES
from tests import forking

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def test_every_command_and_option_is_documented():
    page = (DOCS / "reference" / "cli.md").read_text()
    for name, command in commands(typer.main.get_command(app)):
        rows = [line for line in page.splitlines() if line.startswith(f"| `holdfast {name}` ")]
        assert len(rows) == 1, f"Add one row for `holdfast {name}` to docs/reference/cli.md."
        for parameter in command.params:
            option = f"`{parameter.opts[0]}`"
            assert option in rows[0], (
                f"Add {option} to the row of `holdfast {name}` in docs/reference/cli.md."
            )


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command and its full name."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def test_the_guide_to_a_new_operation_shows_the_code():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    shown = re.findall(r"^   `(src/\S+)`:\n\n   ```\w+\n(.*?)^   ```", guide, re.DOTALL | re.MULTILINE)
    assert len(shown) == 7
    for path, fragment in shown:
        code = "".join(line.removeprefix("   ") for line in fragment.splitlines(keepends=True))
        assert code in (ROOT / path).read_text(), path


def test_every_test_that_is_named_exists():
    for page in PAGES:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text()):
            assert f"def {name}(" in (ROOT / file).read_text() if name else (ROOT / file).exists(), (
                page,
                file,
                name,
            )


def test_every_setting_is_documented():
    page = (DOCS / "reference" / "settings.md").read_text()
    for name, field in Settings.model_fields.items():
        (row,) = [
            line for line in page.splitlines() if line.startswith(f"| `{PREFIX}{name.upper()}` | `{name}` |")
        ]
        default = str(field.default).removesuffix(".0")
        assert f"| `{default}` |" in row


@pytest.mark.parametrize("page", ["agents.md", "store.md", "media.md", "types.md", "errors.md", "http.md"])
def test_the_reference_is_up_to_date(page: str):
    program = f"import make_reference; print(make_reference.MADE['{page}'](), end='')"
    made = forking.run([sys.executable, "-c", program], cwd=DOCS)
    assert (DOCS / "reference" / page).read_text() == made.stdout, "run `make generate`"


def test_every_route_is_documented():
    store = open_store("sqlite://:memory:")
    document = create_app(load_settings(), store, shell=ShellService(store)).openapi()
    page = (DOCS / "reference" / "http.md").read_text()
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"| {method.upper()} `{path}` |" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {slug(heading.replace("`", "")) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def test_every_page_is_in_the_navigation_of_the_site_once():
    navigation = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    pages = [*SITE_PAGES.values(), *(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))]
    assert sorted(navigation) == sorted(pages)


def leaves(tree: Any) -> Iterator[str]:
    """Yield the pages of a navigation tree."""
    if isinstance(tree, str):
        yield tree
    else:
        branches: list[Any] = list(tree.values()) if isinstance(tree, dict) else tree  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        for branch in branches:
            yield from leaves(branch)


def test_every_picture_has_a_description():
    for page in PAGES:
        for text, _ in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
            assert text, page


def test_the_example_of_the_readme_runs(tmp_path: Path):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = forking.run([sys.executable, "-c", example], cwd=tmp_path)
    answer, *events = done.stdout.splitlines()
    assert answer == '{"send_letter":"sent"}'
    assert [int(event.split()[0]) for event in events] == list(range(1, 16))
    assert (events[0], events[-1]) == ("1 submission_queued", "15 submission_done")


def test_the_store_by_itself(tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "how-to" / "stores.md").read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "asyncio.run" in block]
    done = forking.run([sys.executable, "-c", example], cwd=tmp_path)
    assert done.stdout == '1 hello {"to": "world"}\n'


def test_the_tour_runs():
    done = forking.run([sys.executable, "-m", "examples.tour"], cwd=ROOT)
    assert "Nothing acknowledged is lost" in done.stdout
    assert "refused: The lease on session" in done.stdout
    assert "every invariant of the store holds" in done.stdout


def test_the_worker_runs_and_goes_on_after_a_kill(tmp_path: Path):
    def worker(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "examples.worker", f"sqlite:///{tmp_path}/w.db", *arguments]

    def run(*arguments: str) -> None:
        done = forking.run(worker(*arguments), cwd=ROOT)
        assert done.returncode == 0, done.stderr

    for text in ("hello", "again"):
        run("--submit", "talk", text)
    with forking.Forked(worker(), cwd=ROOT) as running:
        running.kill()
    run("--until-idle")
    run("--submit", "talk", "bye")
    run("--until-idle")

    async def read() -> list[str]:
        async with open_store(f"sqlite:///{tmp_path}/w.db") as store:
            events = await store.events("talk")
            return [json.loads(event.payload)["text"] for event in events if event.kind == "answer"]

    assert asyncio.run(read())[-1] == "BYE"


def test_the_example_of_media_runs(tmp_path: Path):
    example, *_ = re.findall(r"```python\n(.*?)```", (DOCS / "how-to" / "media.md").read_text(), re.DOTALL)
    done = forking.run([sys.executable, "-c", example], cwd=tmp_path)
    assert done.stdout == "media+sha256://20bb5 b'\\x89PNG...'\n90\n2\n"


def test_the_example_of_messages_with_media_runs(tmp_path: Path):
    _, example, *_ = re.findall(r"```python\n(.*?)```", (DOCS / "how-to" / "media.md").read_text(), re.DOTALL)
    done = forking.run([sys.executable, "-c", example], cwd=tmp_path)
    assert done.stdout == "True 1\nTrue\n"


def test_the_example_of_a_policy_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (DOCS / "how-to" / "policy.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (variable,) = re.findall(r"`HOLDFAST_RETENTION='(.*?)'`", page)
    (tmp_path / "holdfast.toml").write_text(example)
    monkeypatch.chdir(tmp_path)
    assert [policy.name for policy in load_settings().retention] == ["legal", "support", "everything else"]
    monkeypatch.setenv("HOLDFAST_RETENTION", variable)
    assert [policy.action for policy in load_settings().retention] == ["clean"]
    for key in RetentionPolicy.model_fields:
        assert f"| `{key}` |" in page


def test_the_example_of_recording_runs(tmp_path: Path):
    example, *_ = re.findall(r"```python\n(.*?)```", (DOCS / "how-to" / "record.md").read_text(), re.DOTALL)
    done = forking.run([sys.executable, "-c", example], cwd=tmp_path)
    assert done.stdout == "completed 0 0\n"


def test_the_example_of_the_shell_runs(tmp_path: Path):
    example, *_ = re.findall(r"```python\n(.*?)```", (DOCS / "how-to" / "shell.md").read_text(), re.DOTALL)
    done = forking.run([sys.executable, "-c", example], cwd=tmp_path)
    assert done.stdout.startswith("hello done 3\n0 1\n")
    assert done.stdout.endswith(" 0\n")


def test_the_columns_of_an_archive_are_documented():
    page = (DOCS / "reference" / "archive.md").read_text()
    for table in BY_NAME.values():
        names = [f"`{column.name}{'?' * column.optional}`" for column in table.columns]
        columns = [
            name if column.is_text else f"*{name}*" for name, column in zip(names, table.columns, strict=True)
        ]
        key = ", ".join(f"`{name}`" for name in table.key)
        assert f"| `{table.name}` | {key} | {', '.join(columns)} |" in page
    order = [f"`{table.name}`" for table in TABLES]
    assert ", ".join(order) in page.replace("\n", " ")


def test_an_export_has_the_same_file_name_everywhere():
    """Another name would suggest another format: that of `holdfast archive build` has the ending .jsonl, and so have the files of a mirror."""
    sources = [*PAGES, *(ROOT / "src" / "holdfast" / "cli").glob("*.py")]
    named = {
        name for page in sources for name in re.findall(r"[\w.-]+\.(?:ndjson|jsonl)\b", page.read_text())
    }
    assert named == {"talk.ndjson", "lines.jsonl", "SESSION.jsonl"}


def test_the_map_of_the_architecture_names_every_module_and_package():
    text = (ROOT / "docs" / "design.md").read_text()
    tree = text[text.index("    src/holdfast/\n") : text.index("\n## One client")]
    named = set(re.findall(r"[\w.]+(?:\.py|/)", "\n".join(line[:70] for line in tree.splitlines())))
    present = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "src" / "holdfast").iterdir()
        if path.is_dir() or path.suffix == ".py"
    }
    assert present - named - {"__init__.py", "__main__.py", "__pycache__/"} == set()


def test_the_oldest_pydantic_ai_is_the_same_everywhere():
    oldest = re.search(r'"pydantic-ai-slim>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    stated = re.search(r"\| Pydantic AI \| ([\d.]+) and later", (ROOT / "docs" / "stability.md").read_text())
    assert oldest
    assert stated
    assert oldest[1] == stated[1]


def test_the_threshold_of_the_sqlite_writer_is_the_documented_one():
    stated = re.search(r"commits take less than ([\d.]+) ms", (ROOT / "docs" / "design.md").read_text())
    assert stated
    assert float(stated[1]) / 1000 == writer._QUICK_SECONDS  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("page", ["README.md", "docs/promises.md"])
def test_the_cost_of_late_steps_is_promised_as_it_was_measured(page: str):
    measured = re.search(
        r"growth in the recorder was ([\d.]+) to (\d+\.\d+)", (ROOT / "docs" / "performance.md").read_text()
    )
    assert measured
    assert f"{measured[1]} to {measured[2]} times" in (ROOT / page).read_text()
