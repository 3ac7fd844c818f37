"""Every component whose data are public has a real data set with its revision, globs that take its training files only, and a stand-in "
"of its own."""

import pytest

from phasewise.flows.recipes import NAMES, load_recipe, load_record
from phasewise.flows.recipes.catalogue import CATALOGUE, CRAWL_BAD_FRACTION
from phasewise.tasks.data.filters import FieldFilter, TextFilter
from phasewise.tasks.data.listing import selects
from phasewise.validations.evidence.caches import names_like_tests

PUBLIC = {name: data.source for name, data in CATALOGUE.items() if data.source is not None}
TRINITY = set(CATALOGUE) - set(PUBLIC)

DATASETS = {
    "mlfoundations/dclm-baseline-1.0@a3b142c": {"dclm_baseline"},
    "bigcode/starcoderdata@9fc30b5": {"starcoderdata"},
    "EleutherAI/proof-pile-2@901a927": {"proofpile_2"},
    "HuggingFaceTB/finemath@8f233cf": {"finemath_3_plus"},
    "common-pile/stackv2_edu_filtered@c354dbe": {"stackv2_edu_python"},
    "allenai/dolmino-mix-1124@bb54cab": {
        "dolmino_dclm", "dolmino_pes2o", "dolmino_stackexchange", "dolmino_wiki", "flan", "all_math", "all_math_9d507c",
        "dolmino_codesearchnet", "dolmino_math_synth", "dolmino_gsm8k", "dolmino_mathcoder2", "dolmino_metamath", "dolmino_tiny_gsm_mind",
        "dolmino_tulu_math",
    },
    "LLM360/MegaMath@3cbc6461": {
        "megamath_web", "megamath_web_by_folder", "megamath_web_pro", "megamath_text_code_block", "megamath_translated_code", "megamath_qa",
    },
    "marin-community/ar5iv-no-problem-markdown": {"arxiv_markdownified"},
    "marin-community/wikipedia-markdown": {"wikipedia_markdown"},
    "marin-community/stackexchange-markdown": {"stackexchange_custom"},
    "marin-community/datashop-science-qa": {"medu_science_qa"},
    "TIGER-Lab/AceCode-89K@0361e95": {"acecode_89k"},
    "bespokelabs/Bespoke-Stratos-17k@9e9adba": {"bespoke_stratos_17k"},
    "cognitivecomputations/dolphin-r1@f6ac651": {"dolphin_r1_nonreasoning", "dolphin_r1_reasoning"},
    "facebook/natural_reasoning@99eea5d": {"natural_reasoning"},
    "open-r1/OpenThoughts-114k-math@2db609d": {"openthoughts_114k_math"},
    "HuggingFaceTB/smoltalk@2c849df": {"smoltalk"},
    "allenai/tulu-3-sft-mixture@55e9fd6": {"tulu_3_sft_mixture"},
    "PrimeIntellect/verifiable-math-problems@2ad7c92": {"verifiable_math_problems"},
}  # fmt: skip
DOLMA = {"dolma_pes2o", "dolma_arxiv", "dolma_stackexchange", "dolma_wiki", "megawika", "open_web_math", "algebraic_stack", "dolma_flan"}
NEMOTRON = {name for name in CATALOGUE if name.startswith("nemotron_")}
MEGAMATH = DATASETS["LLM360/MegaMath@3cbc6461"]
INSTRUCTION = {
    "acecode_89k", "bespoke_stratos_17k", "dolphin_r1_nonreasoning", "dolphin_r1_reasoning", "natural_reasoning",
    "openthoughts_114k_math", "smoltalk", "tulu_3_sft_mixture", "verifiable_math_problems",
}  # fmt: skip
UNUSED = {"dolmino_tiny_gsm_mind", "instruction_trinity"}  # a part of all_math that no mixture names, and what no phase trains on yet

CRAWL = ("kind2=actual/CC-MAIN-2013-20-part-00000.jsonl.zstd", "kind2=distill/CC-MAIN-2024-30-part-00042.jsonl.zstd")
NO_CRAWL = ("index.html", "kind2=actual/test-00000.jsonl.zstd", "kind2=actual/CC-MAIN-2013-20-part-00000.parquet")
MARKDOWN = ("train-00000.jsonl.gz", "documents/00/shard_0.jsonl.gz")
NO_MARKDOWN = ("README.md", "validation/shard_0.jsonl.gz", "test.jsonl.gz")
ONE_FOLDER = ("data/train-00000-of-00003.parquet", "data/train-00002-of-00003.parquet")
NO_FOLDER = ("README.md", "data/test-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet")
FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # component: names as the data set has them, of which all must be taken; and names of which none must
    "dclm_baseline": (
        ("global-shard_01_of_10/local-shard_0_of_10/shard_00000000_processed.jsonl.zst",),
        ("README.md", "global-shard_01_of_10/local-shard_0_of_10/test/shard_00000000_processed.jsonl.zst"),
    ),
    "dolmino_dclm": (("data/dclm/0000/dclm-0000.json.zst",), ("data/flan/tulu_flan-0000.json.gz", "data/dclm/test/dclm-0000.json.zst")),
    **dict.fromkeys(NEMOTRON, (CRAWL, NO_CRAWL)),
    "starcoderdata": (
        ("python/train-00000-of-00059.parquet", "git-commits-cleaned/train-00063-of-00064.parquet"),
        ("README.md", "python/test-00000-of-00001.parquet"),
    ),
    "stackv2_edu_python": (("stack-edu-0000.json.gz", "stack-edu-0094.json.gz"), ("README.md", "stack-edu-test.json.gz")),
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
    "finemath_3_plus": (
        ("finemath-3plus/train-00000-of-00128.parquet",),
        ("finemath-4plus/train-00000-of-00064.parquet", "infiwebmath-3plus/train-00000-of-00099.parquet",
         "finemath-3plus/test-00000-of-00001.parquet"),
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
    "all_math_9d507c": (
        ("data/math/gsm8k/main/train/0.jsonl.zst", "data/math/tulu_math/personahub_math_v5/train_0000.jsonl"),
        ("data/wiki/wiki-0000.json.gz", "data/test/wiki-0000.json.gz"),
    ),
    "dolmino_codesearchnet": (
        ("data/math/codesearchnet-owmfilter/go/0000.jsonl.gz",), ("data/math/codesearchnet-owmfilter/go/valid_0000.jsonl.gz",),
    ),
    "dolmino_math_synth": (
        ("data/math/dolmino_math_synth/basic_math/basic_math_mj_add_3shot_TRAIN.jsonl",), ("data/math/dolmino_math_synth/test/0.jsonl",),
    ),
    "dolmino_gsm8k": (("data/math/gsm8k/main/train/0.jsonl.zst",), ("data/math/gsm8k/main/test/0.jsonl.zst",)),
    "dolmino_mathcoder2": (
        ("data/math/mathcoder2-synthmath/m-a-p_Matrix/filtered-math/book_math.0000.0000.jsonl",),
        ("data/math/mathcoder2-synthmath/test/0.jsonl",),
    ),
    "dolmino_metamath": (("data/math/metamath-owmfilter/0000.jsonl.gz",), ("data/math/metamath-owmfilter/test_0000.jsonl.gz",)),
    "dolmino_tiny_gsm_mind": (
        ("data/math/tinyGSM-MIND/2students/tiny_gsm_inline_part000.000000.jsonl.gz",), ("data/math/tinyGSM-MIND/test/0.jsonl.gz",),
    ),
    "dolmino_tulu_math": (("data/math/tulu_math/personahub_math_v5/train_0000.jsonl",), ("data/math/tulu_math/test/0000.jsonl",)),
    "dolma_flan": (("tulu_flan/tulu_flan-0065.json.gz",), ("tulu_flan/tulu_flan-test-0000.json.gz",)),
    "megamath_web": (("megamath-web/2014/00000.parquet",), ("megamath-web-pro/00000.parquet", "megamath-web/test/00000.parquet")),
    "megamath_web_by_folder": (("megamath-web/2014/00000.parquet",), ("megamath-web-pro/00000.parquet", "megamath-web/test/00000.parquet")),
    "megamath_web_pro": (
        ("megamath-web-pro/00000.parquet",), ("megamath-web/2014/00000.parquet", "megamath-web-pro/test-00000.parquet"),
    ),
    "megamath_text_code_block": (
        ("megamath-text-code-block/00000.parquet",), ("megamath-code/00000.parquet", "megamath-text-code-block/eval/00000.parquet"),
    ),
    "megamath_translated_code": (
        ("megamath-translated-code/000_00000.parquet",), ("megamath-code/00000.parquet", "megamath-translated-code/dev_00000.parquet"),
    ),
    "megamath_qa": (
        ("megamath-qa/llama-3.3/000_00000.parquet", "megamath-qa/qwen-2.5/000_00000.parquet"),
        ("megamath-qa/validation/000_00000.parquet", "README.md"),
    ),
    "algebraic_stack": (
        ("proof_pile_2-algebraic_stack/algebraic-stack-train-0015.json.gz",),
        ("proof_pile_2-algebraic_stack/algebraic-stack-test-0000.json.gz",),
    ),
    "open_web_math": (
        ("proof_pile_2-open_web_math/open-web-math-train-0012.json.gz",), ("proof_pile_2-open_web_math/open-web-math-test-0000.json.gz",),
    ),
    "dolma_pes2o": (("pes2o/pes2o-0000.json.gz", "pes2o/pes2o-0025.json.gz"), ("pes2o/pes2o-validation.json.gz",)),
    "dolma_arxiv": (("redpajama-arxiv/arxiv-0099.json.gz",), ("redpajama-arxiv/arxiv-test.json.gz",)),
    "dolma_stackexchange": (("redpajama-stackexchange/stackexchange-0025.json.gz",), ("redpajama-stackexchange/test-0000.json.gz",)),
    "dolma_wiki": (("wiki/wiki-0000.json.gz", "wiki/wiki-0001.json.gz"), ("wiki/wiki-test.json.gz",)),
    "megawika": (("wikiref_megawika/megawika-0261.json.gz",), ("wikiref_megawika/megawika-test-0000.json.gz",)),
    "dolmino_pes2o": (("data/pes2o/pes2o-0000.json.gz",), ("data/pes2o/test/pes2o-0000.json.gz",)),
    "dolmino_wiki": (("data/wiki/wiki-0001.json.gz",), ("data/wiki/wiki_dev.json.gz",)),
    "dolmino_stackexchange": (("data/stackexchange/stackexchange-0000.json.gz",), ("data/stackexchange/test-0000.json.gz",)),
    "flan": (("data/flan/tulu_flan-0208.json.gz",), ("data/flan/tulu_flan-test-0000.json.gz",)),
    "arxiv_markdownified": (MARKDOWN, NO_MARKDOWN),
    "wikipedia_markdown": (MARKDOWN, NO_MARKDOWN),
    "stackexchange_custom": (MARKDOWN, NO_MARKDOWN),
    "medu_science_qa": (MARKDOWN, NO_MARKDOWN),
    "acecode_89k": (ONE_FOLDER, NO_FOLDER),
    "bespoke_stratos_17k": (ONE_FOLDER, NO_FOLDER),
    "openthoughts_114k_math": (ONE_FOLDER, NO_FOLDER),
    "tulu_3_sft_mixture": (ONE_FOLDER, NO_FOLDER),
    "verifiable_math_problems": (ONE_FOLDER, NO_FOLDER),
    "dolphin_r1_nonreasoning": (("dolphin-r1-nonreasoning.jsonl",), ("dolphin-r1-reasoning-flash.jsonl", "dolphin-r1-test.jsonl")),
    "dolphin_r1_reasoning": (
        ("dolphin-r1-reasoning-deepseek.jsonl", "dolphin-r1-reasoning-flash.jsonl"),
        ("dolphin-r1-nonreasoning.jsonl", "dolphin-r1-reasoning-test.jsonl"),
    ),
    "natural_reasoning": (("full.jsonl",), ("README.md", "train_science_reasoning_8.7k.jsonl", "test.jsonl")),
    "smoltalk": (
        ("data/all/train-00000-of-00009.parquet",),
        ("data/all/test-00000-of-00001.parquet", "data/smol-magpie-ultra/train-00000-of-00006.parquet"),
    ),
}  # fmt: skip


def test_it_has_every_component_of_the_recipes_and_those_of_later_ones():
    of_recipes = {name for recipe in NAMES for name in load_record(recipe, "full").components}
    assert set(CATALOGUE) == of_recipes | UNUSED
    assert [len(load_recipe(recipe, "full").components) for recipe in NAMES] == [28, 25, 13, 13, 14]
    assert (len(CATALOGUE), len(NEMOTRON), len(INSTRUCTION), len(TRINITY)) == (68, 7, 9, 15)


def test_only_the_data_of_trinity_are_not_public():
    assert set(load_record("trinity-large", "full").components) | {"instruction_trinity"} == TRINITY
    assert all(CATALOGUE[name].stand_in for name in TRINITY)


def test_every_source_is_where_the_record_has_it_at_its_revision():
    hub = {name: source.root.removeprefix("hf://datasets/") for name, source in PUBLIC.items() if source.url.startswith("hf:")}
    assert {dataset: {name for name in hub if hub[name] == dataset} for dataset in hub.values()} == DATASETS
    others = {name: source.url for name, source in PUBLIC.items() if name not in hub}
    assert {name for name, url in others.items() if url == "https://olmo-data.org/dolma-v1_7"} == DOLMA
    assert set(others) == DOLMA | NEMOTRON
    assert {others[name] for name in NEMOTRON} == {"https://data.commoncrawl.org"}
    root = "contrib/Nemotron/Nemotron-CC/data-jsonl/"
    globs = [glob for name in NEMOTRON for glob in PUBLIC[name].include]
    assert sorted(glob.removeprefix(root).removesuffix("/*CC-MAIN-*.jsonl.zstd") for glob in globs) == [
        "quality=high/kind=actual",
        "quality=high/kind=synthetic",
        "quality=low/kind=actual",
        "quality=low/kind=synthetic",
        "quality=medium-high/kind=actual",
        "quality=medium-low/kind=actual",
        "quality=medium/kind=actual",
    ]


def test_a_set_without_a_revision_is_one_that_the_record_names_none_for():
    without = {name for name, source in PUBLIC.items() if source.url.startswith("hf:") and source.revision is None}
    assert without == {"arxiv_markdownified", "wikipedia_markdown", "stackexchange_custom", "medu_science_qa"}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_its_globs_take_the_training_files_and_nothing_else(name: str):
    """Judged on names as the data set has them, and on one at least that says test, dev or validation."""
    source = PUBLIC[name]
    folder = source.include[0].rpartition("/")[0] + "/" if source.listing else ""
    taken, left = ([folder + file for file in files] for files in FILES[name])
    assert names_like_tests(left)
    assert not names_like_tests(taken)
    assert [file for file in (*taken, *left) if selects(source, file)] == taken


def test_dolma_names_every_file():
    """Its server lists nothing: a file that is not named is not read."""
    counts = {name: len(PUBLIC[name].include) for name in DOLMA}
    assert counts == {
        "algebraic_stack": 16, "open_web_math": 13, "dolma_pes2o": 26, "dolma_arxiv": 100, "dolma_stackexchange": 26, "dolma_wiki": 2,
        "megawika": 262, "dolma_flan": 66,
    }  # fmt: skip


def test_text_keys_and_filters_are_the_records():
    keys = {name: source.text_key for name, source in PUBLIC.items() if source.text_key != "text"}
    assert keys == {"starcoderdata": "content"}
    filters = {name: source.filters for name, source in PUBLIC.items() if source.filters}
    assert set(filters) == {"stackv2_edu_python", "wikipedia_markdown"}
    (extension,) = filters["stackv2_edu_python"]
    assert isinstance(extension, FieldFilter)
    assert (extension.key, {value.lstrip(".") for value in extension.keep}) == ("metadata.extension", {"py", "pyw", "pyi"})
    thresholds = [one for one in filters["wikipedia_markdown"] if isinstance(one, TextFilter)]
    assert [(one.measure, one.min, one.max) for one in thresholds] == [
        ("digit_percent", None, 50), ("words", 70, None), ("special_percent", None, 50),
    ]  # fmt: skip


def test_only_crawled_text_may_have_bad_lines():
    assert {name for name, source in PUBLIC.items() if source.max_bad_fraction} == {
        "dclm_baseline", "dolmino_dclm", "open_web_math", "finemath_3_plus", "megamath_web", "megamath_web_by_folder", "megamath_web_pro",
        *NEMOTRON,
    }  # fmt: skip
    assert {source.max_bad_fraction for source in PUBLIC.values()} == {0, CRAWL_BAD_FRACTION}


def test_conversations_have_the_layout_of_their_set_and_so_have_their_stand_ins():
    layouts = {name: source.conversation for name, source in PUBLIC.items() if source.conversation}
    assert set(layouts) == INSTRUCTION
    assert {name: how.columns for name, how in layouts.items()} == {
        "acecode_89k": ("question", "inferences"),
        "bespoke_stratos_17k": ("system", "conversations"),
        "dolphin_r1_nonreasoning": ("messages",),
        "dolphin_r1_reasoning": ("messages", "answer"),
        "natural_reasoning": ("question", "responses"),
        "openthoughts_114k_math": ("messages",),
        "smoltalk": ("messages",),
        "tulu_3_sft_mixture": ("messages",),
        "verifiable_math_problems": ("prompt", "gold_standard_solution"),
    }
    stand_ins = {name: data.stand_in.conversation for name, data in CATALOGUE.items() if data.stand_in and data.stand_in.conversation}
    assert {name: how for name, how in stand_ins.items() if name not in TRINITY} == layouts
    assert {name: how.template for name, how in stand_ins.items() if name in TRINITY} == {"instruction_trinity": "trinity"}


def test_no_two_components_read_the_same_files():
    """But for the branch of sorted data, whose stand-in alone is another one."""
    read = [(source.root, source.include) for name, source in PUBLIC.items() if name != "megamath_web_by_folder"]
    assert len(set(read)) == len(read)


def test_the_bundle_as_it_was_cached_has_the_test_split_that_the_clean_one_leaves_out():
    held = "data/math/gsm8k/main/test/0.jsonl.zst"
    assert [selects(PUBLIC[name], held) for name in ("all_math", "all_math_9d507c", "dolmino_gsm8k")] == [False, True, False]
    assert names_like_tests([held])
