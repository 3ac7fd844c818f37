"""Instructions and their answers, as conversations: Marin 8B's supervised fine-tuning (exp1237).

A conversation becomes text by a chat template, which comes with the instruction phases. Until then `columns` names what it has to join,
with the text key as the first of them, and these components can be trained on at proxy scale only, where a stand-in is plain text.
"""

from flows.recipes.catalogue.component import ComponentData, hub, site, stand_in

DOLPHIN = "cognitivecomputations/dolphin-r1@f6ac651"

INSTRUCTION: dict[str, ComponentData] = {
    "acecode_89k": ComponentData(  # of the inferences, the completion with the best pass_rate
        source=hub("TIGER-Lab/AceCode-89K@0361e95", "data/train-*.parquet", text_key="question"),
        stand_in=stand_in("code", *site("websockets", "httpx"), kilobytes=250),
        columns=("question", "inferences"),
    ),
    "bespoke_stratos_17k": ComponentData(
        source=hub("bespokelabs/Bespoke-Stratos-17k@9e9adba", "data/train-*.parquet", text_key="conversations"),
        stand_in=stand_in("questions", *site("oauthlib", "marshmallow"), kilobytes=250),
        columns=("conversations", "system"),
    ),
    "dolphin_r1_nonreasoning": ComponentData(
        source=hub(DOLPHIN, "dolphin-r1-nonreasoning.jsonl", text_key="messages"),
        stand_in=stand_in("questions", *site("fastapi", "typer", "starlette", "key_value"), kilobytes=250),
        columns=("messages",),
    ),
    "dolphin_r1_reasoning": ComponentData(
        source=hub(DOLPHIN, "dolphin-r1-reasoning-*.jsonl", text_key="messages"),
        stand_in=stand_in("questions", *site("alembic", "docket"), kilobytes=250),
        columns=("messages", "answer"),
    ),
    "natural_reasoning": ComponentData(  # the first and only response
        source=hub("facebook/natural_reasoning@99eea5d", "full.jsonl", text_key="question"),
        stand_in=stand_in("questions", *site("portalocker", "packaging"), kilobytes=250),
        columns=("question", "responses"),
    ),
    "openthoughts_114k_math": ComponentData(
        source=hub("open-r1/OpenThoughts-114k-math@2db609d", "data/train-*.parquet", text_key="messages"),
        stand_in=stand_in("questions", *site("griffe", "evaluate", "lxml"), kilobytes=250),
        columns=("messages",),
    ),
    "smoltalk": ComponentData(
        source=hub("HuggingFaceTB/smoltalk@2c849df", "data/all/train-*.parquet", text_key="messages"),
        stand_in=stand_in("questions", *site("apprise", "mistune", "markdown_it"), kilobytes=250),
        columns=("messages",),
    ),
    "tulu_3_sft_mixture": ComponentData(
        source=hub("allenai/tulu-3-sft-mixture@55e9fd6", "data/train-*.parquet", text_key="messages"),
        stand_in=stand_in("questions", *site("pygments", "markdown", "psutil", "dill"), kilobytes=250),
        columns=("messages",),
    ),
    "verifiable_math_problems": ComponentData(
        source=hub("PrimeIntellect/verifiable-math-problems@2ad7c92", "data/train-*.parquet", text_key="prompt"),
        stand_in=stand_in(
            "questions",
            *site("attr", "jsonschema", "jaxtyping", "tqdm", "prometheus_client", "pydantic_settings"),
            kilobytes=250,
        ),
        columns=("prompt", "gold_standard_solution"),
    ),
}
