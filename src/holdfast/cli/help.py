"""The help of every command: plain text with examples, and the commands of `holdfast` in groups."""

import inspect
import re
from collections.abc import Callable
from textwrap import dedent
from typing import Any, Final, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.errors import BadUsage

_F = TypeVar("_F", bound=Callable[..., Any])
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
    """Commands under the headings that they name as `rich_help_panel`, single commands before groups of them."""

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
        headings: dict[str, list[tuple[str, Any]]] = {}
        shown = [(name, command) for name, command in self.commands.items() if not command.hidden]
        for name, command in sorted(shown, key=lambda item: isinstance(item[1], TyperGroup)):
            heading = getattr(command, "rich_help_panel", None)
            headings.setdefault(heading if isinstance(heading, str) else "Commands", []).append(
                (name, command)
            )
        width = max(len(name) for name, _ in shown)
        for heading, commands in headings.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (name.ljust(width), command.get_short_help_str(formatter.width))
                        for name, command in commands
                    ]
                )


class Commands(typer.Typer):
    """A group of commands."""

    def __init__(self, help: str, **options: Any) -> None:
        super().__init__(help=help, cls=_Group, rich_markup_mode=None, **options)

    def command(self, name: str | None = None, *, cls: Any = _Command, **options: Any) -> Callable[[_F], _F]:
        """Add a function as a command. Its docstring is the help; it may end with a section `Examples:`."""
        return super().command(name, cls=cls, **options)
