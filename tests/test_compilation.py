"""That no file of tests uses what another one had compiled the other way."""

from typing import Any

import jax

from tests.compilation import compile_from_now_on


def test_only_a_change_of_the_way_throws_away_what_is_compiled():
    compiled: list[bool] = []

    def once(value: Any) -> Any:
        compiled.append(jax.config.values["jax_disable_most_optimizations"])
        return value + 1

    program = jax.jit(once)
    for quickly in (False, False, True, True, False):
        compile_from_now_on(quickly=quickly)
        program(1.0)
    assert compiled == [False, True, False]
