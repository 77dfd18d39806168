"""Completion in bash, zsh and fish: click's own, with values that go on (`pretrain.`, `beir:`) left open.

Each shell hands over the line up to the cursor as COMP_LINE and gets one line for each completion: a type, then the
value. `open` is a value that goes on, so that the shell adds no space. click's scripts know no such values, and in bash
they see a word with a colon or an equals sign as several.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import click
from click.shell_completion import (
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from drkit.core.escaping import escape_line

VARIABLE = "_DRKIT_COMPLETE"
OPEN = "open"


class LineComplete(ShellComplete):
    """Completes the last word of COMP_LINE."""

    breaks: ClassVar[str] = ""
    """Characters that split a word in this shell: only what comes after the last one is replaced."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._option = self._replaced = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the last one, and the last one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        # click completes the value of `--set=pre`, and the shell replaces the whole word.
        option, equals, value = incomplete.partition("=") if incomplete.startswith("--") else ("", "", incomplete)
        self._option = option + equals
        typed = self._option + value
        self._replaced = typed[: max((typed.rfind(character) for character in self.breaks), default=-1) + 1]
        return words[1:], incomplete

    def value_of(self, item: CompletionItem[Any]) -> str:
        """Return what replaces the word, or the end of it after the last character that breaks words."""
        value = escape_line(str(item.value))
        if item.type in ("dir", "file"):
            return value
        return (value if value.startswith("-") else self._option + value).removeprefix(self._replaced)


class _Bash(LineComplete):
    name = "bash"
    breaks = ":="
    source_template = r"""# bash: save this as ~/.local/share/bash-completion/completions/%(prog_name)s, or put
#   eval "$(%(prog_name)s completion bash)"   into ~/.bashrc
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            dir,*) compopt -o dirnames 2>/dev/null ;;
            file,*) compopt -o default 2>/dev/null ;;
            open,*) compopt -o nospace 2>/dev/null; COMPREPLY+=("${line#*,}") ;;
            plain,*) COMPREPLY+=("${line#*,}") ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s 2>/dev/null || complete -F %(complete_func)s %(prog_name)s
"""

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return the type and the value."""
        return f"{item.type},{self.value_of(item)}"


class _Zsh(LineComplete):
    name = "zsh"
    source_template = r"""#compdef %(prog_name)s
# zsh: save this as _%(prog_name)s in a folder of $fpath, or put
#   eval "$(%(prog_name)s completion zsh)"   after compinit into ~/.zshrc
%(complete_func)s() {
    local kind value described
    local -a plain plain_described open open_described
    while IFS=$'\t' read -r kind value described; do
        case "$kind" in
            dir) _path_files -/ ;;
            file) _path_files ;;
            open) open+=("$value"); open_described+=("$described") ;;
            plain) plain+=("$value"); plain_described+=("$described") ;;
        esac
    done < <(COMP_LINE="${(j: :)words[1,CURRENT]}" %(complete_var)s=zsh_complete %(prog_name)s 2>/dev/null)
    (( $#plain )) && compadd -U -V plain -l -d plain_described -a plain
    (( $#open )) && compadd -U -V open -l -S '' -d open_described -a open
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return the type, the value, and what the list shows, with tabs between them."""
        value = self.value_of(item)
        return "\t".join((item.type, value, f"{value}  {escape_line(item.help)}" if item.help else value))


class _Fish(LineComplete):
    name = "fish"
    source_template = r"""# fish: save this as ~/.config/fish/completions/%(prog_name)s.fish
function %(complete_func)s
    set -l typed (commandline -cp | string collect)
    for line in (env COMP_LINE="$typed" %(complete_var)s=fish_complete %(prog_name)s 2>/dev/null)
        set -l parts (string split -m 1 "," -- $line)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case open plain
                echo $parts[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return the type and the value, and the help after a tab."""
        help_text = f"\t{escape_line(item.help)}" if item.help else ""
        return f"{item.type},{self.value_of(item)}{help_text}"


SHELLS = tuple(add_completion_class(shell).name for shell in (_Bash, _Zsh, _Fish))


def completion_script(cli: click.Command, shell: str) -> str:
    """Return the script that makes a shell complete `drkit`; its first lines say how to install it."""
    found = get_completion_class(shell)
    assert found is not None
    return found(cli, {}, "drkit", VARIABLE).source()


def print_completions(cli: click.Command) -> int:
    """Answer a completion script: print completions of COMP_LINE. Whatever fails, nothing is printed."""
    try:
        return shell_complete(cli, {}, "drkit", VARIABLE, os.environ[VARIABLE])
    except Exception:  # of a plugin, a broken recipe, or a line that no command understands
        return 1
