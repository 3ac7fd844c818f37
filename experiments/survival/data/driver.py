"""Build the corpus in a separate process: `python -m experiments.survival.data.driver HOME CORPUS [--shuffle SEED]`.

The result is JSON on standard output, an error is one line on standard error.
"""

import argparse
import json
import random
import sys
from typing import Any

from dask.distributed import Client

from experiments.survival.data.corpus import VOCAB_SIZE, corpus_sources
from phasewise.tasks.data import listing, reading
from phasewise.tasks.data.cluster import one_cluster
from phasewise.tasks.data.plan import plan_data
from phasewise.tasks.data.prepare import build_missing_caches, make_missing_tokenizer, write_missing_documents
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import PhasewiseError


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("home")
    parser.add_argument("corpus")
    parser.add_argument("--shuffle", type=int)
    chosen = parser.parse_args()
    reading.PIECE_BYTES, listing.MIN_PART_BYTES = 1 << 19, 1  # the driver divides the work and informs the workers
    if chosen.shuffle is not None:
        shuffle_calls(chosen.shuffle)
    try:
        print(json.dumps(build(chosen.home, chosen.corpus)))
    except PhasewiseError as error:
        print(f"phasewise: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def build(home: str, corpus: str) -> dict[str, int]:
    plan = plan_data(corpus_sources(corpus), Home.open(home), vocab_size=VOCAB_SIZE)
    with one_cluster() as shared:  # starting processes takes longer than these tasks
        return {
            "documents": write_missing_documents(plan, shared),
            "tokenizers": int(make_missing_tokenizer(plan, VOCAB_SIZE, None)),
            "caches": build_missing_caches(plan, shared),
        }


def shuffle_calls(seed: int) -> None:
    draw = random.Random(seed)
    submit = Client.submit

    def submit_somewhere(self: Client, *arguments: Any, **options: Any) -> Any:
        return submit(self, *arguments, **options, priority=draw.randrange(1000))

    Client.submit = submit_somewhere


if __name__ == "__main__":
    sys.exit(main())
