import importlib.metadata
import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.tasks.data.listing import selects
from phasewise.tasks.data.stand_ins import StandIn, collect, is_new, text_of
from phasewise.trainer.base.identity import digest_of_json
from phasewise.validations.evidence.caches import names_like_tests
from tests.flows.recipes.test_record_8b import RECORD

PUBLIC = {name: data.source for name, data in CATALOGUE.items() if data.source is not None}
TRINITY = set(CATALOGUE) - set(PUBLIC)

INSTRUCTION = {
    "acecode_89k", "bespoke_stratos_17k", "dolphin_r1_nonreasoning", "dolphin_r1_reasoning", "natural_reasoning",
    "openthoughts_114k_math", "smoltalk", "tulu_3_sft_mixture", "verifiable_math_problems",
}  # fmt: skip

FILES: dict[str, dict[str, list[str]]] = json.loads((RECORD / "files.json").read_text())
"""Component → names as the data set has them: all of `taken` must be taken, and none of `left`. `all_math_9d507c` has its test split."""


def test_it_is_the_catalogue_that_was_reviewed():
    data = {name: entry.model_dump(mode="json") for name, entry in CATALOGUE.items()}
    assert digest_of_json(data)[:12] == "daeb64a64aea"


@pytest.mark.parametrize("name", FILES)
def test_its_globs_take_the_training_files_and_nothing_else(name: str):
    source = PUBLIC[name]
    folder = source.include[0].rpartition("/")[0] + "/" if source.listing else ""
    taken, left = ([folder + file for file in files] for files in FILES[name].values())
    assert names_like_tests(left)
    assert bool(names_like_tests(taken)) == (name == "all_math_9d507c")
    assert [file for file in (*taken, *left) if selects(source, file)] == taken


# ── stand-ins ──

STAND_INS = {name: data.stand_in for name, data in CATALOGUE.items() if data.stand_in}
DOLMINO = {f"dolmino_{name}" for name in ("codesearchnet", "math_synth", "gsm8k", "mathcoder2", "metamath", "tulu_math")}
MATHEMATICS_32B = {name for name in CATALOGUE if name.startswith("megamath_") and name != "megamath_web_by_folder"} | {"all_math_9d507c"}
LATER_THAN_MARIN_8B = sorted({*INSTRUCTION, *MATHEMATICS_32B, "stackv2_edu_python", "dolma_flan", *DOLMINO})
A_LITTLE = 20_000
PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def packages(stand_in: StandIn) -> set[str]:
    own = {pattern.removeprefix("site:").split("/")[0] for pattern in stand_in.where if pattern.startswith("site:")}
    return own.union(*map(packages, stand_in.followed_by))


@pytest.mark.parametrize("view", sorted({stand_in.view for stand_in in STAND_INS.values()}))
def test_stand_ins_of_one_view_come_from_different_files(view: str):
    of_view: dict[str, StandIn] = {name: stand_in for name, stand_in in STAND_INS.items() if stand_in.view == view}
    for name, stand_in in of_view.items():
        for other, another in of_view.items():
            shared = set(stand_in.where) & set(another.where) if name != other else set[str]()
            assert not shared - set(stand_in.without) - set(another.without), (name, other)


@pytest.mark.parametrize("name", LATER_THAN_MARIN_8B)
def test_later_stand_ins_share_no_package_with_any_other(name: str):
    stand_in = STAND_INS[name]
    assert all(re.fullmatch(r"site:\w+/\*\*/\*\.py", pattern) for pattern in stand_in.where)
    for other, another in STAND_INS.items():
        assert other == name or other in TRINITY or not packages(stand_in) & packages(another), other


def test_every_package_comes_with_the_program():
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
    return re.sub(r"[-_.]+", "-", name).lower()


def test_later_stand_ins_have_text_and_it_is_their_own():
    collected = {name: collect(STAND_INS[name].but(max_bytes=A_LITTLE)) for name in LATER_THAN_MARIN_8B}
    seen = set[int]()
    kept = {name: [one for one in documents if is_new(text_of(one), seen)] for name, documents in collected.items()}
    for name, documents in kept.items():
        assert sum(len(text_of(one)) for one in documents) > A_LITTLE / 4, name


def test_the_stand_in_of_sorted_data_is_sorted_by_what_it_is_a_view_of():
    stand_in = STAND_INS["megamath_web_by_folder"]
    own = len(collect(stand_in.but(followed_by=())))
    kinds = ["Exercises on " in document["text"][:20] for document in collect(stand_in)]
    assert len(kinds) > own
    assert kinds == sorted(kinds)
    assert set(kinds) == {False, True}
