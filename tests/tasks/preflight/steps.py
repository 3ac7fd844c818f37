"""Results of the compiler, made up."""

from tasks.preflight.plan import GIB
from trainer.preflight.spec import Collective, Memory, Result


def result_of(peak_gib: float, *, limit_gib: float = 30.75, refused: bool = False) -> Result:
    peak = round(peak_gib * GIB)
    memory = Memory(arguments=GIB, temporaries=peak - GIB, peak=peak, host=0)
    return Result(
        refusal="RESOURCE_EXHAUSTED: as it says" if refused else None,
        memory=memory,
        limit_bytes=round(limit_gib * GIB),
        collectives=(
            Collective(kind="all-gather", axis="fsdp", link="ici", count=128, bytes=30 * 10**9),
            Collective(kind="all-reduce", axis="fsdp", link="ici", count=64, bytes=10 * 10**9),
            Collective(kind="all-reduce", axis="replica", link="dcn", count=64, bytes=10**8),
        ),
        hbm_bytes=5 * 10**11,
        flops_by_xla=1e16,
        lower_seconds=1.0,
        compile_seconds=4.0,
        host_bytes=GIB,
    )
