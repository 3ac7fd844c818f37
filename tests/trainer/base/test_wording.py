from phasewise.trainer.base import wording


def test_numbers_read_well_and_little_is_not_nothing():
    assert [wording.count(n) for n in (0, 999, 1000, 2_361_600, 6_230_000_000_000)] == ["0", "999", "1 k", "2.36 M", "6.23 T"]
    assert [wording.rate(v) for v in (5.7e-3, 1e-3, 0.0, None, float("nan"))] == ["5.7e-3", "1e-3", "0", "–", "not finite"]
    assert [wording.signed(v, places=2) for v in (0.25, -0.25, -0.001)] == ["+0.25", "−0.25", "±0.00"]
    assert [wording.percent(v) for v in (92.57, 0.327, 0.001)] == ["92.6", "0.33", "<0.01"]
    assert [wording.moment(m) for m in ("2025-11-20T13:06:41+00:00", "yesterday")] == ["2025-11-20 13:06 UTC", "yesterday"]
    assert [wording.plural(n, "check") for n in (0, 1, 2, 1000)] == ["0 checks", "1 check", "2 checks", "1,000 checks"]
    about = {0: "0 s", 119: "119 s", 120: "2 min", 7199: "120 min", 7200: "2 h", 3_600_000: "1,000 h"}
    assert {seconds: wording.about(seconds) for seconds in about} == {seconds: f"about {words}" for seconds, words in about.items()}
    for value, places, figure, words in (
        (1234.5678, 2, 1234.57, "1,234.57"), (0.0, 2, 0.0, "0.00"), (0.0490, 2, 0.049, "0.049"), (0.00071642, 3, 0.0007164, "0.00072"),
        (339_559.4, 0, 339_559, "339,559"), (14.018, 0, 14.02, "14"), (2.262, 0, 2.262, "2.3"), (0.9996, 2, 0.9996, "1.00"),
        (0.31, 1, 0.31, "0.31"),
    ):  # fmt: skip
        assert (wording.to_places(value, places), wording.small(value, places)) == (figure, words)


def test_a_list_is_cut_where_it_is_longer_than_asked_for_and_a_setting_says_what_is_on():
    assert [wording.name_some(items, 2) for items in ([], "ab", iter("abc"))] == ["", "a, b", "a, b and 1 more"]
    assert wording.name_some(range(1, 2003), 2, "; ") == "1; 2; and 2,000 more"
    assert wording.in_words({"a_b": True, "off": None, "no": False, "c": [1, 0.5]}) == "a b, c 1, 0.5"
    values = (None, True, False, (), 12_000, 1.7e-05)
    assert [wording.in_words(value) for value in values] == ["off", "yes", "no", "none", "12,000", "1.7e-05"]
