"""A disk that fills up at a chosen write."""

from __future__ import annotations

import errno
import os


class Disk:
    """A disk that is full from its n-th flush on, until it is emptied. Every write of the program ends in one."""

    def __init__(self) -> None:
        self.flushes, self.full_at = 0, 10**9
        self._fsync = os.fsync

    def fsync(self, descriptor: int) -> None:
        """As `os.fsync` on such a disk."""
        self.flushes += 1
        if self.flushes >= self.full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fsync(descriptor)

    def fill(self, at: int) -> None:
        """Fill it from the `at`-th flush from here."""
        self.flushes, self.full_at = 0, at

    def empty(self) -> int:
        """Make room, and say how many flushes there were."""
        count, self.flushes, self.full_at = self.flushes, 0, 10**9
        return count
