from phasewise.validations.evidence.leakage.items import BenchmarkItem, merge_equal

ITEM = BenchmarkItem("birds", "birds", "1", "How many wrens sit here?", answer="3", solutions=("one and two",))


def test_equal_questions_become_one_item_that_knows_all_solutions() -> None:
    other = ITEM._replace(id="2", question="How many  wrens\nsit here?", solutions=("two and one", "one and two"))
    assert merge_equal([ITEM, other]) == [ITEM._replace(solutions=("one and two", "two and one"))]


def test_the_order_of_choices_does_not_matter_and_other_choices_do() -> None:
    first, shuffled, other = (ITEM._replace(choices=choices) for choices in (("a", "b"), ("b", "a"), ("a", "c")))
    assert merge_equal([first, shuffled, other]) == [first, other]


def test_an_item_without_its_passage_is_the_same_item() -> None:
    bare, full = ITEM._replace(id="2"), ITEM._replace(passage="Three wrens sat down.")
    assert merge_equal([full, bare]) == [full]
    assert merge_equal([bare, full]) == [bare._replace(passage=full.passage)]
    other = ITEM._replace(passage="Four wrens sat down.")
    assert merge_equal([full, other]) == [full, other]


def test_benchmarks_stay_apart() -> None:
    assert len(merge_equal([ITEM, ITEM._replace(benchmark="fish")])) == 2
