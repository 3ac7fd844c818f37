"""Instructions and their answers, as conversations: Marin 8B's supervised fine-tuning (exp1237), each set in its own layout.

The layouts are those of the record's adapters (Marin experiment code, `experiments/instruction_datasets.py`). Two things are not: it
names the column `system` of Bespoke-Stratos and does not read it, and a later state of it leaves out what `dolphin_r1_reasoning` has with
a system message. Here both keep their system text. `leave_out` names the columns with text that the adapters do not read.
"""

from phasewise.flows.recipes.catalogue.component import ComponentData, conversations
from phasewise.tasks.data.conversations.declared import AnswerColumn, Conversation

DOLPHIN = "cognitivecomputations/dolphin-r1@f6ac651"
MESSAGES = Conversation(messages="messages", template="marin")
BEST_INFERENCE = AnswerColumn(key="inferences", content="completion", best_by="pass_rate")
FIRST_RESPONSE = AnswerColumn(key="responses", content="response")

INSTRUCTION: dict[str, ComponentData] = {
    "acecode_89k": conversations(
        "TIGER-Lab/AceCode-89K@0361e95",
        "data/train-*.parquet",
        layout=Conversation(prompt="question", answer=BEST_INFERENCE, leave_out=("test_cases", "context_messages"), template="marin"),
        packages=("websockets", "httpx"),
    ),
    "bespoke_stratos_17k": conversations(
        "bespokelabs/Bespoke-Stratos-17k@9e9adba",
        "data/train-*.parquet",
        layout=Conversation(messages="conversations", role="from", content="value", system="system", template="marin"),
        packages=("oauthlib", "marshmallow"),
    ),
    "dolphin_r1_nonreasoning": conversations(
        DOLPHIN, "dolphin-r1-nonreasoning.jsonl", layout=MESSAGES, packages=("fastapi", "typer", "starlette", "key_value")
    ),
    "dolphin_r1_reasoning": conversations(
        DOLPHIN,
        "dolphin-r1-reasoning-*.jsonl",
        layout=Conversation(messages="messages", answer=AnswerColumn(key="answer"), leave_out=("reasoning",), template="marin"),
        packages=("alembic", "docket"),
    ),
    "natural_reasoning": conversations(
        "facebook/natural_reasoning@99eea5d",
        "full.jsonl",
        layout=Conversation(prompt="question", answer=FIRST_RESPONSE, leave_out=("reference_answer",), template="marin"),
        packages=("portalocker", "packaging"),
    ),
    "openthoughts_114k_math": conversations(
        "open-r1/OpenThoughts-114k-math@2db609d",
        "data/train-*.parquet",
        layout=Conversation(messages="messages", leave_out=("problem", "solution", "system", "conversations"), template="marin"),
        packages=("griffe", "evaluate", "lxml"),
    ),
    "smoltalk": conversations(
        "HuggingFaceTB/smoltalk@2c849df", "data/all/train-*.parquet", layout=MESSAGES, packages=("apprise", "mistune", "markdown_it")
    ),
    "tulu_3_sft_mixture": conversations(
        "allenai/tulu-3-sft-mixture@55e9fd6",
        "data/train-*.parquet",
        layout=MESSAGES,
        packages=("pygments", "markdown", "psutil", "dill"),
    ),
    "verifiable_math_problems": conversations(
        "PrimeIntellect/verifiable-math-problems@2ad7c92",
        "data/train-*.parquet",
        layout=Conversation(
            prompt="prompt",
            answer=AnswerColumn(key="gold_standard_solution"),
            leave_out=("verification_info", "metadata"),
            template="marin",
        ),
        packages=("attr", "jsonschema", "jaxtyping", "tqdm", "prometheus_client", "pydantic_settings"),
    ),
}
