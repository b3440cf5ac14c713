import pytest

from testdg.core.settings import BUDGET, Search, make_settings
from testdg.methods import find_method
from testdg.studies.tuning import configurations
from testdg.studies.variants import Variant, all_variants

VARIANTS = {one.key: one for task in ("classification", "segmentation") for one in all_variants(task)}


@pytest.mark.parametrize("key", VARIANTS)
def test_every_method_has_the_same_budget_with_the_published_settings_in_it(key: str) -> None:
    variant = VARIANTS[key]
    for preset in ("none", *variant.method_class.presets):
        tried = configurations(variant, preset)
        assert len({one.described for one in tried}) == BUDGET
        assert [one.published for one in tried].count(True) == 1
        base = variant.method_class.preset(None if preset == "none" else preset)
        for one in tried:
            make_settings(variant.method_class.Settings, {**base, **variant.fixed, **one.settings})
        (published,) = (one for one in tried if one.published)
        bare = make_settings(variant.method_class.Settings, {**base, **variant.fixed})
        assert make_settings(variant.method_class.Settings, {**base, **variant.fixed, **published.settings}) == bare


def test_a_published_value_takes_the_place_of_the_nearest_and_rates_are_factors() -> None:
    search = Search(rates=(0.1, 1), values={"share": (0.1, 0.5, 0.9), "way": ("a", "b")})
    assert search.axes({"learning_rate": 3e-4, "share": 0.4, "way": "c"}) == {
        "learning_rate": (3e-5, 3e-4),
        "share": (0.1, 0.4, 0.9),
        "way": ("a", "c"),
    }
    assert len(search.configurations({"learning_rate": 1.0, "share": 0.5, "way": "a"})) == 12
    assert Search().configurations({}) == []


def test_variants_are_rows_of_their_own() -> None:
    come = find_method("tent").search.variants["come"]
    assert VARIANTS["tent:come"] == Variant("tent", "come", come)
    assert VARIANTS["tent:come"].title == "TENT (come)"
    assert {"sar:come", "eata:come", "roid:uncorrected", "versatile:all", "testdg:released"} <= VARIANTS.keys()
