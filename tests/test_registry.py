"""The one registry: names to things, and messages for names that are not there."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from perfmodel.base import registry
from perfmodel.base.registry import Registry, offered
from perfmodel.errors import PerfmodelError


@pytest.fixture
def designs() -> Registry[str]:
    found: Registry[str] = Registry("design")
    found.register("hotline", "hot")("a")
    found.register("neo")("b")
    return found


def test_names_give_their_thing_in_order_of_name(designs: Registry[str]) -> None:
    assert list(designs) == ["hot", "hotline", "neo"]
    assert designs["hot"] == designs["hotline"] == "a"
    assert "neo" in designs
    assert designs.get("neo") == "b"


def test_register_gives_back_what_it_registers() -> None:
    things: Registry[type] = Registry("thing")

    @things.register("x")
    class X:
        pass

    assert things["x"] is X


def test_an_unknown_name_lists_the_nearest(designs: Registry[str]) -> None:
    assert designs.get("none") is None
    assert "none" not in designs
    with pytest.raises(PerfmodelError, match=r"^unknown design 'hotlin'; nearest: hotline, hot$"):
        designs["hotlin"]
    with pytest.raises(PerfmodelError, match=r"nearest: hot, hotline, neo$"):
        designs["zzzzzz"]


def test_a_name_like_no_other_of_many_says_how_many_there_are() -> None:
    many = [f"op_{n}" for n in range(20)]
    assert offered("x" * 99, many, "perfmodel kernel") == (
        f"{'x' * 60!r}; `perfmodel kernel` lists the 20"
    )
    assert offered("x", many) == "'x'; there are 20"
    assert offered("x", many[:2]) == "'x'; nearest: op_0, op_1"


def test_a_name_is_registered_once(designs: Registry[str]) -> None:
    with pytest.raises(PerfmodelError, match=r"^design 'neo' is registered twice$"):
        designs.register("neo")("c")
    assert designs["neo"] == "b"


def test_what_broke_off_the_imports_is_made_up_for_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home_of_things"
    home.mkdir()
    (home / "__init__.py").write_text("asked, registry = [], None\n")
    (home / "a.py").write_text("from home_of_things import registry\nregistry.register('a')(1)\n")
    (home / "b.py").write_text(
        "from home_of_things import asked, registry\n"
        "asked.append(1)\n"
        "if len(asked) == 1:\n    raise KeyboardInterrupt\n"
        "registry.register('b')(2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found: Registry[int] = Registry("thing", home="home_of_things")
    monkeypatch.setattr("home_of_things.registry", found)
    with pytest.raises(KeyboardInterrupt):
        found.get("b")
    assert found.get("b") == 2
    assert list(found) == ["a", "b"]


def test_plug_ins_load_on_first_use_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def installed() -> list[EntryPoint]:
        asked.append("once")
        groups = ("perfmodel.other", "perfmodel.test")
        return [EntryPoint(f"joined{at}", "os.path:join", group) for at, group in enumerate(groups)]

    monkeypatch.setattr("perfmodel.base.registry._installed", installed)
    found: Registry[object] = Registry("function", "perfmodel.test")
    found.register("own")(len)
    assert asked == []
    assert list(found) == ["joined1", "own"]
    assert callable(found["joined1"])
    assert asked == ["once"]


def test_packages_are_read_where_one_mentions_a_group_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    about = tmp_path / "thing-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: thing\nVersion: 1\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    points = about / "entry_points.txt"
    for text, names in (
        ("[console_scripts]\nmine = os.path:join\n", []),
        ("[console_scripts]\nx = os:x\n[perfmodel.test]\nmine = os.path:join\n", ["mine"]),
    ):
        points.write_text(text)
        registry._installed.cache_clear()
        assert list(Registry("function", "perfmodel.test")) == names
    registry._installed.cache_clear()


def test_a_plug_in_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "nowhere_at_all:thing", "perfmodel.test")
    monkeypatch.setattr("perfmodel.base.registry._installed", lambda: [broken])
    found: Registry[object] = Registry("function", "perfmodel.test")
    found.register("own")(1)
    assert found["own"] == 1
    assert "broken" in found
    with pytest.raises(
        PerfmodelError,
        match=r"^function 'broken': the plug-in nowhere_at_all:thing does not load: Module",
    ):
        found["broken"]


def test_a_plug_in_that_exits_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ends_here.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("odd", "ends_here:X", "perfmodel.test")]
    monkeypatch.setattr("perfmodel.base.registry._installed", lambda: points)
    with pytest.raises(PerfmodelError, match="ends_here:X does not load: SystemExit: 3"):
        Registry("thing", "perfmodel.test").get("odd")
