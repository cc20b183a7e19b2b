"""Settings of this process's memory."""

import torch


def let_the_allocator_keep_pages() -> None:
    """Free one large block of memory, so that glibc stops returning smaller blocks to the system.

    The allocator of glibc maps fresh pages for each tensor of a few MiB, until a larger block of up to 32 MiB has been
    freed. The page faults would take a fifth of the time of a step with 500 rows. Without glibc this has no effect.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8, device="cpu")
