"""The help of every command: plain text with examples, and the commands of `holdfast` in groups."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from textwrap import dedent
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.errors import BadUsage

_F = TypeVar("_F", bound=Callable[..., Any])
Places: TypeAlias = Mapping[str, Mapping[str, tuple[str, str]]]
"""Commands by heading and name: the module and the function or group in it, and the help. Without help it is hidden.

After a `+` come other modules that add commands to a group.
"""
_TYPE = re.compile(r" <[^>]*>$")
UsageError: Final = cast("type[Exception]", typer.BadParameter.__base__)
"""The error for arguments and options that cannot be parsed. Not every version of Typer exports it."""
_SHARED = {name: rank for rank, name in enumerate(("store", "url", "media", "as_json", "help"), start=1)}
"""Options of most commands, which come last."""


class _Command(TyperCommand):
    """A command whose docstring ends with a section `Examples:`, which is printed after the options."""

    def __init__(self, *arguments: Any, help: str | None = None, **options: Any) -> None:
        text, _, examples = inspect.cleandoc(help or "").partition("\n\nExamples:\n")
        super().__init__(*arguments, help=text, **options | {"epilog": dedent(examples)})

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments as `<required>` and `[optional]`."""
        return [piece.replace("{", "<").replace("}", ">") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments by name, and options with the name of their value instead of its type."""
        records: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in sorted(self.get_params(ctx), key=lambda each: _SHARED.get(each.name or "", 0)):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            names, text = record
            if parameter.param_type_name == "argument":
                records["Arguments"].append((_TYPE.sub("", names), text.removesuffix("  [required]")))
            else:
                value = f" {(parameter.name or '').rpartition('_')[2].upper()}"
                records["Options"].append((_TYPE.sub(value, names), text))
        for heading, rows in records.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one per line, without wrapping them."""
        del ctx
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"  {line}\n")


def bad_usage(error: Any) -> BadUsage:
    """Return a usage error of Typer as an error of Holdfast."""
    context = error.ctx
    command: str = "holdfast" if context is None else context.command_path
    pieces: list[str] = [] if context is None else context.command.collect_usage_pieces(context)
    problem: str = error.format_message()
    end = "" if problem.endswith((".", "?")) else "."
    return BadUsage(problem=f"{problem}{end}", usage=" ".join([command, *pieces]), command=command)


class _Group(TyperGroup):
    """Commands under headings. Without headings, single commands come before groups of them."""

    later: ClassVar[Places] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.later:
            self.commands = cast("Any", _Later(self.later))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help on standard output if there is no command."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands before the options."""
        self.format_commands(ctx, formatter)
        records = [parameter.get_help_record(ctx) for parameter in self.get_params(ctx)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each heading with its commands."""
        del ctx
        headings = self._headings(formatter.width)
        width = max(len(name) for rows in headings.values() for name, _ in rows)
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])

    def _headings(self, width: int) -> dict[str, list[tuple[str, str]]]:
        if isinstance(self.commands, _Later):
            return self.commands.headings
        shown = [(name, command) for name, command in self.commands.items() if not command.hidden]
        shown.sort(key=lambda item: isinstance(item[1], TyperGroup))
        return {"Commands": [(name, command.get_short_help_str(width)) for name, command in shown]}


class _Later(Mapping[str, Any]):
    """Commands that are imported when they are needed."""

    def __init__(self, places: Places) -> None:
        self.headings = {
            heading: [(name, text) for name, (_, text) in commands.items() if text]
            for heading, commands in places.items()
        }
        self._places = {name: place for each in places.values() for name, place in each.items()}
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            place, text = self._places[name]
            self._built[name] = command = _load(name, place)
            command.hidden = not text
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _load(name: str, place: str) -> Any:
    """Import a command, or a group of them."""
    modules, _, attribute = place.partition(":")
    first, *_ = [import_module(f"holdfast.cli.{module}") for module in modules.split("+")]
    found = getattr(first, attribute)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = Commands("", add_completion=False)
    alone.command(name)(found)
    return typer.main.get_command(alone)


class Commands(typer.Typer):
    """A group of commands. Those to import `later` are named by heading."""

    def __init__(self, help: str, *, later: Places | None = None, **options: Any) -> None:
        group = type("Group", (_Group,), {"later": later}) if later else _Group
        super().__init__(help=help, cls=group, rich_markup_mode=None, **options)

    def command(self, name: str | None = None, *, cls: Any = _Command, **options: Any) -> Callable[[_F], _F]:
        """Add a function as a command. Its docstring is the help; it may end with a section `Examples:`."""
        return super().command(name, cls=cls, **options)
