"""True random permutations, as the measures look at permutations."""

import numpy as np

from phasewise.validations.evidence.order.measures import SAMPLED, STRETCH, Sample


def random_sample(rng: np.random.Generator, length: int) -> Sample:
    """What `take_sample` would see of a true random permutation: places that were not drawn before."""
    if length <= STRETCH:
        places = rng.permutation(length)
        return Sample(length, places, np.arange(length), places)
    indices = np.unique(rng.integers(0, length, SAMPLED))
    count = STRETCH + len(indices)
    if length < 8 * count:
        places = rng.permutation(length)
        return Sample(length, places[:STRETCH], indices, places[indices])
    drawn = rng.integers(0, length, 2 * count)
    _, first = np.unique(drawn, return_index=True)
    places = drawn[np.sort(first)]
    return Sample(length, places[:STRETCH], indices, places[STRETCH:count])
