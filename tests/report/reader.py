"""Reads the page back as a browser would: elements, their text, and what may not be there."""

from html.parser import HTMLParser

VOID = {"meta", "br", "rect", "circle", "path", "line"}


class Page(HTMLParser):
    """tags: (name, attributes) of every element; numbers: id -> value of every <data>; texts: visible text by element.

    tokens: (facts, text) of every token of a rollout.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.numbers: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.tokens: list[tuple[str, str]] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self._open == [], f"elements left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self._open.append((tag, attributes))
        if tag == "data":
            assert attributes["id"] not in self.numbers, "an id is used once"
            self.numbers[attributes["id"] or ""] = attributes["value"] or ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        name, _ = self._open.pop()
        assert name == tag, f"</{tag}> closes <{name}>"

    def handle_data(self, text: str) -> None:
        if not self._open:
            return
        name, attributes = self._open[-1]
        if name not in ("script", "style"):
            self.texts[name] = self.texts.get(name, "") + text
        if name == "data":
            key = f"data#{attributes['id']}"
            self.texts[key] = self.texts.get(key, "") + text
        if name == "i" and "data-k" in attributes:
            self.tokens.append((attributes["data-k"] or "", text))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)
