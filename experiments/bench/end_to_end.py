"""Files to token cache: digests of the files, reading, normalising, deduplication and encoding, against the bare tokenizer.

python -m experiments.bench end_to_end
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from experiments.bench.builds import WORKERS, encode_bare, plan_build, rebuild_caches, texts_of, two_workers, write_documents_and_tokenizer
from experiments.bench.measure import Options, Row, in_turns, on_cores, seconds
from experiments.bench.real_text import write_json_lines
from experiments.bench.tokenization import FILE_MEGABYTES
from phasewise.tasks.data.prepare import write_missing_documents
from phasewise.trainer.base.storage import write_atomically


def rows(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, on_cores(WORKERS), two_workers():
        place = Path(folder)
        write_json_lines(place / "sources", options.megabytes * 10**6, num_files=max(2, options.megabytes // FILE_MEGABYTES))
        plan = plan_build(place / "sources", place / "first")
        write_documents_and_tokenizer(plan)
        texts = texts_of(plan)
        sides = {
            "bare": lambda: encode_bare(plan, texts),
            "prepare": lambda: prepare_again(place / "sources", place / "home", plan.tokenizer),
        }
        medians = in_turns(sides, options.repeats)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    rates = f"{megabytes:.0f} MB: {megabytes / medians['prepare']:.1f} against {megabytes / medians['bare']:.1f} MB/s"
    yield Row("files → token cache, share of bare encode_batch", medians["bare"] / medians["prepare"], note=rates)


def prepare_again(sources: Path, home: Path, tokenizer: Path) -> float:
    shutil.rmtree(home, ignore_errors=True)

    def prepare() -> None:
        plan = plan_build(sources, home)
        write_missing_documents(plan)
        write_atomically(plan.tokenizer, tokenizer.read_bytes())
        rebuild_caches(plan)

    return seconds(prepare)
