import importlib.metadata
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

PUBLIC = {name: data.source for name, data in CATALOGUE.items() if data.source is not None}
TRINITY = set(CATALOGUE) - set(PUBLIC)

INSTRUCTION = {
    "acecode_89k", "bespoke_stratos_17k", "dolphin_r1_nonreasoning", "dolphin_r1_reasoning", "natural_reasoning",
    "openthoughts_114k_math", "smoltalk", "tulu_3_sft_mixture", "verifiable_math_problems",
}  # fmt: skip

FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # component: names as the data set has them, of which all must be taken; and names of which none must
    "dclm_baseline": (
        ("global-shard_01_of_10/local-shard_0_of_10/shard_00000000_processed.jsonl.zst",),
        ("README.md", "global-shard_01_of_10/local-shard_0_of_10/test/shard_00000000_processed.jsonl.zst"),
    ),
    "starcoderdata": (
        ("python/train-00000-of-00059.parquet", "git-commits-cleaned/train-00063-of-00064.parquet"),
        ("README.md", "python/test-00000-of-00001.parquet"),
    ),
    "proofpile_2": (
        (
            "algebraic-stack/train/python0.jsonl.zst", "algebraic-stack/train/lean_proofsteps.jsonl.zst", "arxiv/train/arXiv_000.jsonl.zst",
            "open-web-math/train/shard-0000.jsonl.zst",
        ),
        (
            "proof-pile-2.py", "tokenizer.model", "algebraic-stack/validation/agda.jsonl.zst", "arxiv/validation/arXiv_000.jsonl.zst",
            "arxiv/test/arXiv_001.jsonl.zst", "open-web-math/test/test.jsonl.zst",
        ),
    ),
    "all_math": (
        (
            "data/math/codesearchnet-owmfilter/go/0000.jsonl.gz", "data/math/metamath-owmfilter/0000.jsonl.gz",
            "data/math/dolmino_math_synth/basic_math/basic_math_mj_add_3shot_TRAIN.jsonl",
            "data/math/dolmino_math_synth/gsm8k-synth/resample_v1_6x/gsm8k_resampled_v1_6x.jsonl",
            "data/math/gsm8k/main/train/0.jsonl.zst", "data/math/gsm8k/socratic/train/0.jsonl.zst",
            "data/math/mathcoder2-synthmath/m-a-p_Matrix/filtered-math/book_math.0000.0000.jsonl",
            "data/math/tinyGSM-MIND/2students/tiny_gsm_inline_part000.000000.jsonl.gz",
            "data/math/tulu_math/personahub_math_v5/train_0000.jsonl",
        ),
        (
            "data/math/gsm8k/main/test/0.jsonl.zst", "data/math/gsm8k/socratic/test/0.jsonl.zst", "data/math/gsm8k/test.json",
            "data/math/tulu_math/test/0000.jsonl", "data/math/codesearchnet-owmfilter/go/valid_0000.jsonl.gz",
            "data/wiki/wiki-0000.json.gz",
        ),
    ),
    "all_math_9d507c": (  # as it was cached, with the test split
        ("data/math/gsm8k/main/train/0.jsonl.zst", "data/math/gsm8k/main/test/0.jsonl.zst"),
        ("data/wiki/wiki-0000.json.gz", "data/test/wiki-0000.json.gz"),
    ),
    "natural_reasoning": (("full.jsonl",), ("README.md", "train_science_reasoning_8.7k.jsonl", "test.jsonl")),
}  # fmt: skip


def test_it_is_the_catalogue_that_was_reviewed():
    data = {name: entry.model_dump(mode="json") for name, entry in CATALOGUE.items()}
    assert digest_of_json(data)[:12] == "a185f885b778"


@pytest.mark.parametrize("name", FILES)
def test_its_globs_take_the_training_files_and_nothing_else(name: str):
    source = PUBLIC[name]
    folder = source.include[0].rpartition("/")[0] + "/" if source.listing else ""
    taken, left = ([folder + file for file in files] for files in FILES[name])
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
