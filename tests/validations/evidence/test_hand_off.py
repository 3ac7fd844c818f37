from phasewise.validations.evidence.caches import hand_off_evidence


def test_each_change_is_declared_found_or_both():
    found = {"rope": ("theta 500000", "theta 5000000"), "batch": ("1024", "3072")}
    table = hand_off_evidence(["rope", "ema"], found)
    assert table.to_numpy().tolist() == [
        ["batch", False, True, "1024", "3072", "found undeclared"],
        ["ema", True, False, "", "", "declared not found"],
        ["rope", True, True, "theta 500000", "theta 5000000", "declared and found"],
    ]


def test_from_scratch_and_unchanged_have_a_row_that_says_so():
    assert hand_off_evidence(None, {})[["name", "status"]].to_numpy().tolist() == [["from scratch", "from scratch"]]
    assert hand_off_evidence([], {})[["name", "status"]].to_numpy().tolist() == [["no change", "no change"]]
