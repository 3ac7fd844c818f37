"""What a chip multiplies outside the forward and backward pass, read from the compiled module: the steps of Muon."""

import math
import re

from phasewise.trainer.preflight.hlo import ARRAY, Instruction, Module

LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
OP_NAME = re.compile(r'op_name="([^"]*)"')
OF_THE_MODEL = ("jvp(", "checkpoint")
"""In the names of what is differentiated. What the compiler made without a name is not counted."""


def update_flops(module: Module) -> int:
    """FLOPs on a chip of the products that no gradient goes through, loops multiplied in.

    They are read, and not worked out from the model: which of the chips share a product is the compiler's choice.
    """
    total = 0
    for name, times in module.runs.items():
        here = module.computations.get(name, {})
        total += times * sum(product_flops(here, each) for each in here.values() if _is_of_update(each))
    return total


def _is_of_update(instruction: Instruction) -> bool:
    if instruction.opcode != "convolution":
        return False
    named = OP_NAME.search(instruction.rest)
    return named is not None and not any(part in named.group(1) for part in OF_THE_MODEL)


def product_flops(here: dict[str, Instruction], product: Instruction) -> int:
    """FLOPs of a product of matrices, which the compiler for TPUs writes as a convolution.

    A dimension that both matrices have, that one has, or that is summed over may be a spatial one (a digit in the labels): each takes as
    many multiplications as the longest of its three lengths, whatever the window is padded with.
    """
    labels = LABELS.search(product.rest)
    if labels is None or any(name not in here for name in product.operands[:2]):
        return 0
    left, right, result = (
        dict(zip(letters, _sizes(shape), strict=True))
        for letters, shape in zip(
            labels.groups(), (here[product.operands[0]].shape, here[product.operands[1]].shape, product.shape), strict=True
        )
    )
    spatial = [max(left[letter], right[letter], result[letter]) for letter in result if letter.isdigit()]
    return 2 * result["b"] * right["i"] * right["o"] * math.prod(spatial)


def _sizes(shape: str) -> list[int]:
    found = ARRAY.search(shape)
    return [int(size) for size in found.group(2).split(",") if size] if found else []
