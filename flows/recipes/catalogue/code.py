"""Programs."""

from phasewise.flows.recipes.catalogue.component import ComponentData, dolma, hub, site, stand_in
from phasewise.tasks.data.source import FieldFilter

STARCODER = "bigcode/starcoderdata@9fc30b5"
STACKV2 = "common-pile/stackv2_edu_filtered@c354dbe"
PYTHON_FILES = FieldFilter(key="metadata.extension", keep=("py", "pyw", "pyi", ".py", ".pyw", ".pyi"))
"""The data set writes extensions without their dot, the record's filter with it."""

CODE: dict[str, ComponentData] = {
    "starcoderdata": ComponentData(
        source=hub(STARCODER, "*/train-*.parquet", text_key="content"),
        stand_in=stand_in("code", "stdlib:*.py", "stdlib:asyncio/*.py", *site("fontTools", "PIL", "mako"), kilobytes=800),
    ),
    "algebraic_stack": ComponentData(
        source=dolma("proof_pile_2-algebraic_stack", "algebraic-stack-train", 16),
        stand_in=stand_in("code", *site("scipy/sparse", "numpy/linalg"), kilobytes=300),
    ),
    "stackv2_edu_python": ComponentData(
        source=hub(STACKV2, "stack-edu-*.json.gz", filters=(PYTHON_FILES,)),
        stand_in=stand_in("code", *site("urllib3", "requests", "filelock", "anyio"), kilobytes=500),
    ),
}
