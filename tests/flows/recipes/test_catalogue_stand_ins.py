"""The catalogue's stand-ins: text of this installation, another one for every component."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from phasewise.flows.checks import check_sources
from phasewise.flows.plan import stand_ins_of
from phasewise.flows.recipes import NAMES, load_record, load_target
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.resolved import resolve
from phasewise.tasks.data.stand_ins import NearDuplicates, StandIn, collect, text_of
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError

STAND_INS = {name: data.stand_in for name, data in CATALOGUE.items() if data.stand_in}
TRINITY = {name for name, data in CATALOGUE.items() if data.source is None}
INSTRUCTION = {name for name, data in CATALOGUE.items() if data.source and data.source.conversation}
DOLMINO = {f"dolmino_{name}" for name in ("codesearchnet", "math_synth", "gsm8k", "mathcoder2", "metamath", "tulu_math")}
MATHEMATICS_32B = {name for name in CATALOGUE if name.startswith("megamath_") and name != "megamath_web_by_folder"} | {"all_math_9d507c"}
LATER_THAN_MARIN_8B = sorted({*INSTRUCTION, *MATHEMATICS_32B, "stackv2_edu_python", "dolma_flan", *DOLMINO})
A_LITTLE = 20_000
PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def packages(stand_in: StandIn) -> set[str]:
    """The installed packages that it draws from, or what it is followed by; `*.dist-info` is all of them."""
    own = {pattern.removeprefix("site:").split("/")[0] for pattern in stand_in.where if pattern.startswith("site:")}
    return own.union(*map(packages, stand_in.followed_by))


def test_no_two_stand_ins_are_alike():
    """Another view of the same files is another text; the same view of the same files is not."""
    stand_ins = [(stand_in.view, stand_in.where) for stand_in in STAND_INS.values()]
    assert len(set(stand_ins)) == len(stand_ins)


@pytest.mark.parametrize("view", sorted({stand_in.view for stand_in in STAND_INS.values()}))
def test_stand_ins_of_one_view_come_from_different_files(view: str):
    """No package is seen in the same way by two components, unless one of them leaves the other's files out."""
    of_view: dict[str, StandIn] = {name: stand_in for name, stand_in in STAND_INS.items() if stand_in.view == view}
    for name, stand_in in of_view.items():
        for other, another in of_view.items():
            shared = set(stand_in.where) & set(another.where) if name != other else set[str]()
            assert not shared - set(stand_in.without) - set(another.without), (name, other)


@pytest.mark.parametrize("name", LATER_THAN_MARIN_8B)
def test_later_stand_ins_share_no_package_with_any_other(name: str):
    """Whatever components a recipe puts together, in whatever order they are collected, one never takes another's text."""
    stand_in = STAND_INS[name]
    assert all(re.fullmatch(r"site:\w+/\*\*/\*\.py", pattern) for pattern in stand_in.where)
    for other, another in STAND_INS.items():
        assert other == name or other in TRINITY or not packages(stand_in) & packages(another), other


def test_trinity_s_stand_ins_share_no_package_with_each_other():
    """Its data come with no others in a recipe of this project. The views of packages that others use too are other views."""
    seen: set[str] = set()
    for name in TRINITY:
        found = packages(STAND_INS[name])
        assert found, name
        assert not found & seen, name
        seen |= found


def test_every_package_comes_with_the_program():
    """And not with the tools of those who work on it: a stand-in must be there for everyone."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    wanted, found, seen = [Requirement(line) for line in project["dependencies"]], set[str](), set[tuple[str, str]]()
    while wanted:
        one = wanted.pop()
        name = plain(one.name)
        for extra in {"", *one.extras}:  # `httpx[http2]` brings hpack
            if (name, extra) not in seen:
                seen.add((name, extra))
                found.add(name)
                required = [Requirement(line) for line in importlib.metadata.distribution(name).requires or ()]
                wanted += [of_it for of_it in required if not of_it.marker or of_it.marker.evaluate({"extra": extra})]
    sold_as = importlib.metadata.packages_distributions()
    for component, stand_in in STAND_INS.items():
        for package in packages(stand_in) - {"*.dist-info"}:
            assert {plain(name) for name in sold_as[package]} & found, (component, package)


def plain(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_later_stand_ins_have_text_and_it_is_their_own():
    """A little of each: what they have in full is written by the run that needs it."""
    collected = {name: collect(a_little(STAND_INS[name])) for name in LATER_THAN_MARIN_8B}
    duplicates = NearDuplicates()
    kept = {name: [one for one in documents if duplicates.is_new(text_of(one))] for name, documents in collected.items()}
    for name, documents in kept.items():
        assert sum(len(text_of(one)) for one in documents) > A_LITTLE / 4, name


def a_little(stand_in: StandIn) -> StandIn:
    """The same text, ended early."""
    return stand_in.but(max_bytes=A_LITTLE)


def test_only_a_set_that_no_phase_draws_from_has_none():
    without = set(CATALOGUE) - set(STAND_INS)
    assert without == {"dolmino_tiny_gsm_mind"}
    for recipe in NAMES:
        assert not [phase.name for phase in load_record(recipe, "full").phases if without & set(phase.components)]


def test_the_first_dessert_is_refused_for_its_counts_alone(tmp_path: Path):
    recipe, phase = load_target("marin-8b/dessert-v1", "proxy")
    assert phase is not None
    assert set(phase.components) <= set(stand_ins_of(recipe))
    check_sources(recipe, Home.at(str(tmp_path)))
    with pytest.raises(ConfigError, match=r"dolmino_(codesearchnet|gsm8k)"):
        resolve("marin-8b/dessert-v1", "proxy", str(tmp_path))
