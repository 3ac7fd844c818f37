"""Evidence tables as files: one Parquet file a table, in a verdict's folder."""

import io
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from phasewise.trainer.base.identity import NotAsWritten, digest_of_bytes
from phasewise.trainer.base.storage import as_path, write_atomically


def write_tables(folder: str | Path, tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Write each table as `{name}.parquet` under the folder, which may be any fsspec URL; name → digest of the file."""
    digests: dict[str, str] = {}
    for name, table in tables.items():
        content = io.BytesIO()
        table.to_parquet(content, index=False)
        write_atomically(_url(folder, name), content.getvalue())
        digests[name] = digest_of_bytes(content.getvalue())
    return digests


def read_tables(folder: str | Path, digests: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    """The named tables of a folder.

    Args:
        digests: name of a table → the digest that its verdict names.

    Raises:
        FileNotFoundError: a table is missing.
        NotAsWritten: a table is not the one that was judged.
    """
    return {name: _read_table(_url(folder, name), digest) for name, digest in digests.items()}


def _read_table(url: str, digest: str) -> pd.DataFrame:
    content = as_path(url).read_bytes()
    if digest_of_bytes(content) != digest:
        raise NotAsWritten(f"{url} was changed after it was judged: judge again")
    return pd.read_parquet(io.BytesIO(content))


def _url(folder: str | Path, name: str) -> str:
    return f"{str(folder).rstrip('/')}/{name}.parquet"
