"""HTML that cannot be injected into: text is escaped unless it is already `Markup`.

Invariant: only `tag` and `join` make `Markup`, and both escape every plain string and every attribute value.
"""

import html
import json

_VOID = frozenset({"br", "meta", "rect", "circle", "path", "line"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def join(*children: object) -> Markup:
    """Children one after the other; None is left out, lists are flattened, everything but Markup is escaped."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(str(child))
        elif isinstance(child, list | tuple):
            parts.append(join(*child))
        else:
            parts.append(html.escape(str(child)))
    return Markup("".join(parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. `class_` becomes class, other underscores become hyphens; attributes that are None are left out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{shown}/>")
    return Markup(f"<{name}{shown}>{join(*children)}</{name}>")


def measured(key: str, value: float | int | None, text: str) -> Markup:
    """A number of the report: `key` is its path in the JSON, `value` the exact number, `text` what people read."""
    if value is None:
        return tag("span", "–", class_="missing", id=key, title="not measured")
    return tag("data", text, id=key, value=json.dumps(value))


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
