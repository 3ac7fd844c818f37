import re

from tests.sharing_out import LONGEST, OPERATED, TESTS, TOGETHER, runs_with


def test_the_named_files_are_there_and_those_that_operate_what_is_up_ask_for_it():
    assert [place for place in (*LONGEST, *(place for places in TOGETHER for place in places)) if not (TESTS / place).exists()] == []
    asking = {
        path.relative_to(TESTS).as_posix()
        for path in (TESTS / "deployments").glob("test_*.py")
        if re.search(r"\(up: (\w+\.)?Up", path.read_text())
    }
    assert asking == set(OPERATED)


def test_files_that_share_something_go_to_one_process_and_every_other_file_goes_alone():
    files = [*OPERATED, "end_to_end/data/a.py", "end_to_end/data/b.py", "end_to_end/test_run.py", "trainer/test_killed.py"]
    assert len({runs_with(f"tests/{name}::test_it[a::b]") for name in files}) == 4
