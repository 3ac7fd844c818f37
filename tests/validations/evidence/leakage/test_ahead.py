from typing import Any

from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.match import score_candidates
from phasewise.validations.evidence.leakage.prefilter import find_seeds, group_seeds
from phasewise.validations.evidence.leakage.scan import Document, scan_documents, warm_up_jit
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
QUESTION = "Ann has 12 apples in a basket and gives Bob 5 of them before supper. How many apples has she got left?"


def test_it_compiles_nothing_that_a_scan_has_not():
    index = LeakageIndex.build([BenchmarkItem(benchmark="made", task="made", id="1", question=QUESTION)])
    assert scan_documents([Document("a", 0, "", QUESTION.encode())], index, LIMITS).hits
    loops: tuple[Any, ...] = (find_seeds, group_seeds, score_candidates)
    scanned = [len(loop.signatures) for loop in loops]
    warm_up_jit()
    assert [len(loop.signatures) for loop in loops] == scanned
