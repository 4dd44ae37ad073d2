"""Make many files durable at once: their syncs overlap, so that one commit of the disk's journal serves many."""

import errno
import os

WIDTH = 16  # so many syncs wait for the disk at the same time


def sync(path):
    """See that a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot sync a folder
            raise
    finally:
        os.close(handle)


def sync_all(paths):
    """See that all of these files and folders are on the disk. OSError of the first that cannot be."""
    if len(paths) < 3:
        for path in paths:
            sync(path)
        return
    import threading

    left, failed = list(reversed(paths)), []

    def work():
        while not failed:
            try:
                path = left.pop()
            except IndexError:
                return
            try:
                sync(path)
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(min(WIDTH, len(paths)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
