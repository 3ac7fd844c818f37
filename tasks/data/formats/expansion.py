"""How much a packed file may unfold into."""

from phasewise.tasks.data.formats.findings import FileFault

MAX_EXPANSION = 200
FREE_EXPANSION_BYTES = 100 * 2**20


def check_expansion(unpacked_bytes: int, packed_bytes: int) -> None:
    """Refuse what unfolds like a bomb: text rarely packs better than 20 to 1, gzip can reach 1,000 and Zstandard 30,000 to 1.

    Raises:
        FileFault: more than 200 bytes come of one, counted once there are 100 MiB.
    """
    if unpacked_bytes > FREE_EXPANSION_BYTES and unpacked_bytes > MAX_EXPANSION * packed_bytes:
        raise FileFault(
            "expands too much", f"{packed_bytes} bytes unfold into {unpacked_bytes} and more, at most {MAX_EXPANSION} of one are taken"
        )
