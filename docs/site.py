"""MkDocs hooks: add pages and files from outside docs/ to the site, and fail if a page loads anything from another host."""

import posixpath
import re
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}
"""The pages outside docs/, and their names on the site."""
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)]*)?(\))")
_EXTERNAL = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')


def slug(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def relink(text: str, source: str) -> str:
    """Return the Markdown of a repository file with its relative links as they are on the site."""
    page = site_path(source)

    def replaced(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups(default="")
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        return (
            f"{opening}{posixpath.relpath(site_path(path), posixpath.dirname(page) or '.')}{anchor}{closing}"
        )

    return _LINK.sub(replaced, text)


def site_path(path: str) -> str:
    """Return where a file of the repository is on the site."""
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}")


def linked_files() -> set[str]:
    """Return the files outside docs/ that pages link to."""
    linked: set[str] = set()
    for page in [*(ROOT / name for name in PAGES), *(ROOT / "docs").rglob("*.md")]:
        folder = page.parent.relative_to(ROOT).as_posix()
        for _, target, _, _ in _LINK.findall(page.read_text()):
            path = posixpath.normpath(posixpath.join(folder, target))
            if "://" not in target and path not in PAGES and not path.startswith("docs/"):
                linked.add(path)
    return linked


def on_config(config: Any) -> Any:
    """Use the anchors that GitHub makes, so that links work in both places."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and linked files that are not below docs/."""
    file: Any = import_module("mkdocs.structure.files").File
    for source, target in PAGES.items():
        files.append(file.generated(config, target, content=relink((ROOT / source).read_text(), source)))
    for path in sorted(linked_files()):
        files.append(file.generated(config, site_path(path), content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change links that leave docs/."""
    return relink(markdown, f"docs/{page.file.src_uri}") if page.file.generated_by is None else markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Fail if the page would load something from another host."""
    if found := _EXTERNAL.search(output):
        message = f"{page.file.src_uri} loads {found[0]}"
        raise import_module("mkdocs.exceptions").PluginError(message)
    return output
