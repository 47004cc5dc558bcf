"""A verb of several nouns: `perfmodel fit device`, `perfmodel fit kernels`."""

from __future__ import annotations

from collections.abc import Callable

import typer


def verb_of(text: str, *nouns: Callable[..., None]) -> typer.Typer:
    """The verb with help `text`, each noun one function; without a noun its help is shown."""
    verb = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=text)
    for noun in nouns:
        verb.command()(noun)
    return verb
