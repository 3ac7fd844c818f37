"""Other ways on from Ocelot and Jellyfish: a cooldown with FLAN and mathematics, and "desserts" at Jellyfish's last learning rate."""

from phasewise.flows.recipes.marin.mixtures import ALL_MATH, DOLMINO_MATH, FLAN, JELLYFISH_HIGH_QUALITY, JELLYFISH_WEB, percent
from phasewise.flows.recipes.marin.notes import ALL_MATH_CACHE, EXP600, R8, differs, unstated
from phasewise.flows.recipes.marin.settings import constant, gates, linear
from phasewise.flows.recipes.phase import Discrepancy, Phase, continued
from phasewise.trainer.config import MixtureShares, always

WEB = percent(JELLYFISH_WEB, 70)
TAKE_2_MIXTURE = WEB | percent(JELLYFISH_HIGH_QUALITY | ALL_MATH, 25) | percent(FLAN, 5)
DESSERT_V1_MIXTURE = WEB | percent(JELLYFISH_HIGH_QUALITY, 10) | percent(FLAN | DOLMINO_MATH, 20)
DESSERT_V3_MIXTURE = WEB | percent(JELLYFISH_HIGH_QUALITY, 20) | percent(FLAN | ALL_MATH, 10)
FROM_CHECKPOINT = differs(
    "start",
    "low",
    code="the checkpoint after step 819,924, Jellyfish's last; steps are counted from 820,000",
    retrospective="Jellyfish's end",
    source="Marin experiment code, exp600",
    place=EXP600,
)


def desserts(ocelot: Phase, jellyfish: Phase) -> tuple[Phase, ...]:
    """Cooldown take 2, and both desserts. The first dessert is refused, as it should have been: see its discrepancies."""
    take_2 = continued(
        ocelot,
        name="cooldown-take-2",
        stop_step=820_000,
        declares=("schedule", "mixture"),
        branch=True,
        learning_rate=(linear(740_500, 820_000, 1.7e-3, 1.7e-4),),
        mixture=always(TAKE_2_MIXTURE),
        gates=gates(max_increase_bits_per_byte=0.0, max_epochs=3),
        discrepancies=(ALL_MATH_CACHE,),
        notes=(
            unstated(
                "phase",
                "a cooldown from Ocelot's end with 25 % high quality, mathematics in it, and 5 % FLAN, which no report names",
                source="Marin experiment code, cooldown-take-2",
                place="Marin experiment code, cooldown-take-2",
            ),
        ),
    )
    v1 = _dessert(
        jellyfish,
        "dessert-v1",
        DESSERT_V1_MIXTURE,
        differs(
            "mixture",
            "high",
            code="shares of high quality and dessert swapped: web 70, dessert 20, high quality 10; gsm8k, codesearchnet and the synthetic "
            "mathematics have no sequence in a block of 2,048, and metamath has 0.049 % in place of 0.079 %",
            retrospective="the synthetic mathematics of Dolmino and FLAN were added",
            source="Marin experiment code, dessert v1, documented as bad; counts by block quantisation",
            place=f"Marin experiment code, dessert v1; {R8}, Interlude: Dessert Runs",
        ),
    )
    v3 = _dessert(
        jellyfish,
        "dessert-v3",
        DESSERT_V3_MIXTURE,
        differs(
            "mixture",
            "medium",
            code="web 70, high quality 20, FLAN 8.01 and all_math 1.99, which are one component so that no set of it rounds to nothing",
            retrospective="the synthetic mathematics of Dolmino and FLAN were added; GSM8K 0.509 → 0.611",
            source="Marin experiment code, dessert v3; Marin 8B retrospective, Dessert runs",
            place=f"Marin experiment code, dessert v3; {R8}, Interlude: Dessert Runs",
        ),
        ALL_MATH_CACHE,
    )
    return take_2, v1, v3


def _dessert(jellyfish: Phase, name: str, mixture: MixtureShares, *notes: Discrepancy) -> Phase:
    return continued(
        jellyfish,
        name=name,
        stop_step=837_000,
        declares=("schedule", "mixture", "slice"),
        branch=True,
        learning_rate=(constant(820_000, 837_000, 1.7e-4),),
        mixture=always(mixture),
        slice=always("4x v4-128"),
        checkpoints=jellyfish.checkpoints.but(every_steps=2_000_000),
        gates=gates(max_increase_bits_per_byte=0.02, max_epochs=3),
        discrepancies=(FROM_CHECKPOINT, *notes),
    )
