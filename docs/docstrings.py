"""Docstrings as Markdown: the examples that tests run become blocks of code, and brackets side by side no links."""

import re

from griffe import Extension, Object

EXAMPLES = re.compile(r"(?:^[ ]*>>> .*(?:\n(?![ ]*\n).*)*\n?)+", flags=re.M)  # up to an empty line


class Docstrings(Extension):
    """Rewrites what a docstring says before it is rendered."""

    def on_object(self, *, obj: Object, **others: object) -> None:
        """Rewrites the docstring of a function, class or attribute, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Fences examples, and keeps ``a[b][c]`` from being a link.

    >>> print(as_markdown("Adds.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    parts, place = list[str](), 0
    for found in EXAMPLES.finditer(text):
        parts += [_plain(text[place : found.start()]), f"```pycon\n{found[0].rstrip()}\n```\n"]
        place = found.end()
    return "".join([*parts, _plain(text[place:])]).rstrip()


def _plain(text: str) -> str:
    return text.replace("][", "]\\[")
