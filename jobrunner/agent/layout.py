"""Where things lie on the host (see docs/host.md). Every path is bytes."""

import os
import re

from .files import AgentError, to_bytes

JOB_ID = re.compile(r"[a-z][a-z0-9]{7,15}\Z")


def lease_scope():
    """Keeps several hosts on one machine apart in tests; empty on a real host."""
    return os.environ.get("JOBRUNNER_LEASE_SCOPE", "")


def lock_name(*words):
    """The abstract socket name of a lock or lease, as bytes with the leading NUL."""
    scope = lease_scope()
    return b"\0" + to_bytes("/".join(("jobrunner", "1", *words)) + (("@" + scope) if scope else ""))


def card_name(device, index):
    """The lease of a card: `@jobrunner/1/card/<device>/<index>`, one name space for all users."""
    return lock_name("card", device, str(index))


class Layout:
    """The folders of one user on one host: `root` is shared by machines, `home` belongs to this instance only."""

    def __init__(self, root, instance=""):
        self.root = to_bytes(root)
        self.instance = instance
        self.agents = os.path.join(self.root, b"agent")
        self.blobs = os.path.join(self.root, b"blobs")
        self.packs = os.path.join(self.root, b"packs")
        self.hosts = os.path.join(self.root, b"hosts")
        self.home = os.path.join(self.hosts, to_bytes(instance))
        self.jobs = os.path.join(self.home, b"jobs")
        self.queue = os.path.join(self.home, b"queue")

    def job(self, job_id):
        """The folder of a job. An id that is none (a path, say) is refused."""
        if not JOB_ID.match(job_id):
            raise AgentError("bad_id", "not a job id: {!r}".format(job_id))
        return os.path.join(self.jobs, to_bytes(job_id))

    def attempt(self, job_id, number):
        """The folder of an attempt (1, 2, …)."""
        return os.path.join(self.job(job_id), str(int(number)).encode())

    def queued(self, job_id):
        """The queue's entry of a job: its presence is what QUEUED means."""
        return os.path.join(self.queue, os.path.basename(self.job(job_id)))

    def reboot_file(self):
        """What the crontab's line runs after a boot (see reboot.py); there only while a line may be there."""
        return os.path.join(self.home, b"on-reboot.py")

    def job_lock(self, job_id):
        """The abstract name held by whoever acts on the job: its supervisor for life, others for a moment."""
        return lock_name("job", self.instance, job_id)
