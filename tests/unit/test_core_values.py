"""Dataclasses that are finished when they are first used: nothing else is different about them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobrunner.core.values import dataclass


@dataclass(frozen=True)
class Base:
    """A value."""

    name: str
    words: list[str] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class Inner(Base):
    """A value with more."""

    size: int = 3


@dataclass
class Plain:
    """A value that changes."""

    count: int = 0
    kind: str = ""  # what the making itself is called with is no name to avoid

    def __post_init__(self) -> None:
        self.count += 1


def test_a_value_is_the_standard_library_s() -> None:
    one, same = Inner("a", ["b"], size=4), Inner("a", ["b"], 4)
    assert one == same != Inner("a", ["b"])
    assert repr(one) == "Inner(name='a', words=['b'], size=4)"
    assert dataclasses.asdict(dataclasses.replace(one, size=5)) == {"name": "a", "words": ["b"], "size": 5}
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == copy.deepcopy(one) == one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.size = 1  # type: ignore[misc]
    with pytest.raises(TypeError, match="name"):
        Inner()  # type: ignore[call-arg]
    plain = Plain(2)
    plain.count += 1
    assert plain == Plain(3) != Plain(count=3, kind="other")


def test_fields_are_known_before_the_first_value() -> None:
    @dataclass(frozen=True)
    class Unused(Base):
        """A value that nobody makes."""

        more: int = 0

    assert dataclasses.is_dataclass(Unused)
    assert [item.name for item in dataclasses.fields(Unused)] == ["name", "words", "more"]


def test_what_a_value_is_made_with_is_shown_as_it_is() -> None:
    @dataclass
    class Bare:
        number: int
        text: str = ""

    class Own(Bare):
        def __init__(self) -> None:
            super().__init__(1)

    @dataclasses.dataclass
    class Theirs:
        number: int
        text: str = ""

    assert inspect.signature(Bare) == inspect.signature(Theirs) and not inspect.signature(Own).parameters
    assert Bare.__doc__ == (Theirs.__doc__ or "").replace("Theirs", "Bare")
    assert str(inspect.signature(Inner)).startswith("(name: 'str', words: 'list[str]' = ")


def test_first_values_may_be_made_at_once() -> None:
    for _ in range(20):

        @dataclass(frozen=True)
        class Fresh:
            """A value."""

            number: int
            text: str = ""

        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(Fresh, range(16)))
        assert made == [Fresh(number) for number in range(16)]
