"""`axial completion`: a script by which a shell completes commands, flags and their choices."""

import re
from collections.abc import Iterator
from typing import Literal

import tyro

from axial.checkpoints.shipped import shipped_names
from axial.cli.parsing import help_of
from axial.presets import PRESETS

_BASH = """# Completion of axial for bash. Use it by:  eval "$(axial completion bash)"
_axial() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD - 1]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$cur"))
        return
    fi
    case "${{COMP_WORDS[1]}} $prev" in
{choices}
        *)
            case "${{COMP_WORDS[1]}}" in
{flags}
            esac
            case "$cur" in -*) ;; *) words=$(printf '%s\\n' $words | grep -v '^-') ;; esac
            COMPREPLY=($(compgen -W "$words" -- "$cur"))
            case "$cur" in -*) ;; *) local IFS=$'\\n'; COMPREPLY+=($(compgen -f -- "$cur")) ;; esac
            return ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o filenames -F _axial axial
"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def completion(shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]) -> None:
    """Print a script by which a shell completes commands, flags and their choices.

    Args:
        shell: Which shell. In bash and zsh, put `eval "$(axial completion SHELL)"` into the file
            that it reads when it starts; in fish, `axial completion fish | source`.

    Examples:
        axial completion bash >> ~/.bash_completion
        axial completion fish > ~/.config/fish/completions/axial.fish
    """
    if shell == "fish":
        print("\n".join(_fish()))
    else:
        print((_ZSH if shell == "zsh" else "") + _bash(), end="")


def _bash() -> str:
    commands, found = _commands(), _flags()
    choices = [
        f'        "{name} {flag}") words="{" ".join(known)}" ;;'
        for name, flags in found.items()
        for flag, known in flags.items()
        if known
    ]
    flags = [
        f'                {name}) words="{" ".join([*flags, *_names(name)])}" ;;'
        for name, flags in found.items()
    ]
    flags.append(f'                help) words="{" ".join(commands)}" ;;')
    return _BASH.format(
        commands=" ".join([*commands, "help"]), choices="\n".join(choices), flags="\n".join(flags)
    )


def _fish() -> Iterator[str]:
    yield "complete -c axial -n __fish_use_subcommand -f -a 'help' -d 'Show the help of a command'"
    for name, about in _commands().items():
        said = about.replace("\\", "").replace("'", "\\'")
        yield f"complete -c axial -n __fish_use_subcommand -f -a {name} -d '{said}'"
    for name, flags in _flags().items():
        inside = f"complete -c axial -n '__fish_seen_subcommand_from {name}'"
        for flag, known in flags.items():
            values = f" -x -a '{' '.join(known)}'" if known else ""
            yield f"{inside} -l {flag.removeprefix('--')}{values}"
        if names := _names(name):
            yield f"{inside} -a '{' '.join(names)}'"


def _commands() -> dict[str, str]:
    """Each command with the first line of its help."""
    from axial.cli.main import COMMANDS

    return {name: (run.__doc__ or "").splitlines()[0] for name, run in COMMANDS.items()}


def _flags() -> dict[str, dict[str, list[str]]]:
    """The flags of each command, and what each may be where there are but few words for it."""
    found: dict[str, dict[str, list[str]]] = {}
    for name in _commands():
        shown = re.findall(r"(--[a-z][a-z0-9-]*)(?: \{([\w,.-]+)\})?", help_of(name))
        flags: dict[str, list[str]] = {}
        for flag, words in shown:
            flags[flag] = flags.get(flag) or (words.split(",") if words else [])
        found[name] = dict(sorted(flags.items()))
    return found


def _names(command: str) -> list[str]:
    """What may stand without a flag, beside the names of files."""
    if command == "completion":
        return ["bash", "fish", "zsh"]
    known = {"train": list(PRESETS), "info": [*PRESETS, *shipped_names()], "data": ["digits"]}
    models = ("sample", "complete", "evaluate", "compress", "studio")
    return known.get(command, shipped_names() if command in models else [])
