"""A YAML file on its way to a model: its data, and where each part of it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import Problem
from jobrunner.core.yamldoc import Mark, Node, Path, parse, scalar

if TYPE_CHECKING:
    from typing_extensions import Self


class Document:
    """The nodes of one file (with what options put into it), and the problems found so far."""

    def __init__(self, file: str, root: Node | None, problems: Sequence[Problem] = ()) -> None:
        self.file = file
        self.root = root
        self.problems: list[Problem] = list(problems)

    @classmethod
    def of(cls, text: str, file: str) -> Self:
        """The document in `text`; where it is no YAML there is no root, and a problem says why."""
        return cls(file, *parse(text, file))

    def data(self, written: Callable[[Path], bool] = lambda path: False) -> Any:
        """Plain data. Scalars at paths for which `written` says so arrive as their text, as it stands in the file."""
        return None if self.root is None else self._data(self.root, (), written)

    def _data(self, node: Node, path: Path, written: Callable[[Path], bool]) -> Any:
        if node.kind == "list":
            return [self._data(item, (*path, place), written) for place, item in enumerate(node.items)]
        if node.kind == "map":
            return {key.text: self._data(value, (*path, key.text), written) for key, value in node.pairs}
        value = scalar(node)
        return value if value is None or not written(path) else node.text

    def problem_at(
        self, path: Path, message: str, suggestion: str = "", code: str = "spec", *, on_key: bool = False
    ) -> Problem:
        """A problem with the value at `path` (or its key), placed at the nearest part that the file really has."""
        node, origin, mark = self.root, "", None
        if node is not None:
            origin, mark = node.origin, node.mark
        for place, step in enumerate(path):
            child = node.child(step) if node is not None else None
            if node is None or child is None:
                break
            # A value that is left out stands nowhere: its key does.
            unsaid = child.plain and not child.text
            key = node.key(step) if unsaid or (on_key and place == len(path) - 1) else None
            found = key or child
            node, origin, mark = child, found.origin or child.origin, found.mark
        return self._placed(origin, mark, message, suggestion, code)

    def _placed(self, origin: str, mark: Mark | None, message: str, suggestion: str, code: str) -> Problem:
        if origin:
            return Problem(origin, None, None, message, suggestion, code)
        mark = mark or Mark(1, 1)
        return Problem(self.file, mark.line, mark.column, message, suggestion, code)

    def ordered(self) -> list[Problem]:
        """All problems in the order of the file; those of options come last."""
        return sorted(self.problems, key=lambda p: (p.line is None, p.line or 0, p.column or 0))
