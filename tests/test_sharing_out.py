import pytest

from tests.sharing_out import LONGEST, OPERATED, TESTS, TOGETHER, runs_with


def test_the_files_that_operate_what_is_up_are_those_that_ask_for_it():
    asking = {path.relative_to(TESTS).as_posix() for path in (TESTS / "deployments").glob("test_*.py") if "(up: Up" in path.read_text()}
    assert asking == set(OPERATED)


@pytest.mark.parametrize("place", [*LONGEST, *(place for places in TOGETHER for place in places)])
def test_what_is_named_is_there(place: str):
    assert (TESTS / place).exists()


def test_files_that_share_something_go_to_one_process_and_every_other_file_goes_alone():
    operated = {runs_with(f"tests/{name}::test_it[a::b]") for name in OPERATED}
    data = {runs_with(f"tests/end_to_end/data/{name}::test_it") for name in ("test_killed.py", "test_same_bytes.py")}
    alone = {
        runs_with(f"tests/{name}::test_it") for name in ("end_to_end/test_run.py", "deployments/test_local.py", "trainer/test_killed.py")
    }
    assert (len(operated), len(data), len(alone), len(operated | data | alone)) == (1, 1, 3, 5)
