"""`datasets.map` over JSON lines in two processes, started from a separate process. It prints the seconds of the map and its tokens.

python -m experiments.bench.datasets_map TEXTS TOKENIZER CACHE
"""

import json
import os
import sys
import time
from pathlib import Path

from phasewise.tasks.data.caches import encoding_of
from phasewise.tasks.data.tokenizer import load_tokenizer

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported

BATCH = 128


def main(texts_path: Path, tokenizer_path: Path, cache: Path) -> None:
    """Load (not timed), then map with the tokenizer itself, an end token after each document, to an Arrow file."""
    import datasets
    import pyarrow.compute as pc

    datasets.disable_progress_bars()
    tokenizer = load_tokenizer(tokenizer_path)
    texts = datasets.load_dataset("json", data_files=str(texts_path), split="train", cache_dir=str(cache))
    end = encoding_of(tokenizer_path)[1]
    assert end is not None

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[*encoding.ids, end] for encoding in tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)]}

    start = time.perf_counter()
    mapped = texts.map(encode, batched=True, batch_size=BATCH, num_proc=2, remove_columns=texts.column_names)
    seconds = time.perf_counter() - start
    tokens = pc.sum(pc.list_value_length(mapped.data.column("input_ids"))).as_py() - len(mapped)
    print(json.dumps({"seconds": seconds, "tokens": tokens}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
