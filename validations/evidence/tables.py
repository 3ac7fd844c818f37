"""Evidence tables as files: one Parquet file a table, in a verdict's folder."""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from trainer.base.storage import write_atomically


def write_tables(folder: str | Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write each table as `{name}.parquet` under the folder, which may be any fsspec URL."""
    for name, table in tables.items():
        content = io.BytesIO()
        table.to_parquet(content, index=False)
        write_atomically(_url(folder, name), content.getvalue())


def read_tables(folder: str | Path, names: Iterable[str]) -> dict[str, pd.DataFrame]:
    """The named tables of a folder."""
    return {name: pd.read_parquet(_url(folder, name)) for name in names}


def _url(folder: str | Path, name: str) -> str:
    return f"{str(folder).rstrip('/')}/{name}.parquet"
