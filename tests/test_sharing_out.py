from tests.sharing_out import LONGEST, OPERATED, TESTS, ByFile


def test_the_files_that_operate_what_is_up_are_those_that_ask_for_it():
    asking = {path.relative_to(TESTS).as_posix() for path in (TESTS / "deployments").glob("test_*.py") if "(up: Up" in path.read_text()}
    assert asking == set(OPERATED)
    assert all((TESTS / name).exists() for name in LONGEST)


def test_they_go_to_one_process_and_every_other_file_goes_alone():
    scope_of = ByFile.__new__(ByFile)._split_scope
    operated = {scope_of(f"tests/{name}::test_it[a::b]") for name in OPERATED}
    others = {scope_of(f"tests/{name}::test_it") for name in ("deployments/test_local.py", "deployments/test_site.py", "test_local.py")}
    assert (len(operated), len(others), operated & others) == (1, 3, set())
