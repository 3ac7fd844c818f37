"""A file that knows the digest of what was written to it."""

import hashlib
import io
from typing import Any, BinaryIO


class HashedFile(io.RawIOBase):
    """Passes what is written on to a file and hashes it on the way, so that nothing is read again for its digest."""

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, content: Any) -> int:
        """Append bytes."""
        self._hash.update(content)
        self.size += memoryview(content).nbytes
        return self._file.write(content)

    def tell(self) -> int:
        """Bytes written."""
        return self.size

    def writable(self) -> bool:
        """Always: Arrow asks."""
        return True

    def hexdigest(self) -> str:
        """SHA-256 of everything written so far."""
        return self._hash.hexdigest()
