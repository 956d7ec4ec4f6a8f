"""``penstock completion SHELL``: a script that completes commands, options and their values, made from the parser itself.

Each script finds out which command the line has chosen so far ("", "pipeline", "pipeline archive"), and offers what it takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from shlex import quote
from typing import NamedTuple

from penstock.cli.parser import PlainCommands

SHELLS = ("bash", "zsh", "fish")
MANUAL = """\
to use it now:     source <(penstock completion bash)          fish: penstock completion fish | source
from now on: add that line to ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish"""


class Option(NamedTuple):
    names: list[str]
    help: str
    values: list[str] | None
    """What may follow: None if nothing does; an empty list if anything may."""


class CommandWords(NamedTuple):
    path: str
    children: dict[str, str]
    """The commands below, with their help."""
    options: list[Option]
    values: list[str]
    """What its arguments may be, if they are few."""


def add(command: PlainCommands, build: Callable[[], argparse.ArgumentParser]) -> None:
    parser = command(
        "completion", lambda args: run_completion(args, build()), "print a script that completes the command line in a shell"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = MANUAL
    parser.add_argument("shell", choices=SHELLS, help="for which shell")


def run_completion(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    known = list(_commands(parser, ""))
    print(_fish(known) if args.shell == "fish" else _bash(known, zsh=args.shell == "zsh"))
    return 0


def _commands(parser: argparse.ArgumentParser, path: str) -> Iterator[CommandWords]:
    """A command and all below it."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    children = {choice.dest: choice.help or "" for group in groups for choice in group._choices_actions}
    options, values = [], []
    for action in parser._actions:
        choices = [str(choice) for choice in action.choices or ()]
        if action.option_strings:
            options.append(Option(list(action.option_strings), action.help or "", None if action.nargs == 0 else choices))
        elif action not in groups:
            values += choices
    yield CommandWords(path, children, options, values)
    for group in groups:
        for name, child in group.choices.items():
            yield from _commands(child, f"{path} {name}".strip())


def _bash(commands: list[CommandWords], *, zsh: bool) -> str:
    """zsh has an emulation of bash's completion."""
    lines = ["autoload -Uz compinit bashcompinit && compinit && bashcompinit"] if zsh else []
    lines += [
        "_penstock() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" chosen="" at=1 next words=""',
        "    while (( at < COMP_CWORD )); do",
        '        next="${chosen:+$chosen }${COMP_WORDS[at]}"',
        '        case "$next" in',
        f'            {"|".join(quote(command.path) for command in commands if command.path)}) chosen="$next" ;;',
        "        esac",
        "        (( at += 1 ))",
        "    done",
        '    case "$chosen $before" in',
    ]
    for command in commands:
        for option in command.options:
            if option.values is not None:
                places = "|".join(quote(f"{command.path} {name}") for name in option.names)
                lines.append(f"        {places}) words={quote(' '.join(option.values))} ;;")
    lines += ['        *) case "$chosen" in']
    for command in commands:
        offered = [*command.children, *command.values, *(name for option in command.options for name in option.names)]
        lines.append(f"            {quote(command.path)}) words={quote(' '.join(offered))} ;;")
    lines += [
        "        esac ;;",
        "    esac",
        '    COMPREPLY=( $(compgen -W "$words" -- "$word") )',
        "}",
        "complete -o default -F _penstock penstock",
    ]
    return "\n".join(lines)


def _fish(commands: list[CommandWords]) -> str:
    paths = " ".join(_quoted(command.path) for command in commands if command.path)
    lines = [
        "function __penstock_chosen",
        "    set -l chosen",
        "    set -l words (commandline -opc)",
        "    for word in $words[2..-1]",
        f'        contains -- (string join " " -- $chosen $word) {paths}; and set -a chosen $word',
        "    end",
        '    test "$chosen" = "$argv[1]"',
        "end",
    ]
    for command in commands:
        here = f"complete -c penstock -n {_quoted(f'__penstock_chosen {_quoted(command.path)}')}"
        lines += [f"{here} -f -a {_quoted(name)} -d {_quoted(text)}" for name, text in command.children.items()]
        lines += [f"{here} -f -a {_quoted(value)}" for value in command.values]
        for option in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            takes = (
                "" if option.values is None else " -r" if not option.values else f" -x -a {_quoted(' '.join(option.values))}"
            )
            lines.append(f"{here} {names}{takes} -d {_quoted(option.help)}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """For fish, which knows only these two escapes between single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
