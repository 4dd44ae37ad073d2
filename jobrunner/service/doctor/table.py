"""The table of checks, in the order in which they are shown. docs/doctor.md is the same table for people."""

from __future__ import annotations

from jobrunner.service.doctor import cards, own, software, storage, system
from jobrunner.service.doctor.finding import Rule

RULES: tuple[Rule, ...] = (
    # the session
    Rule("channels", own.channels, "sshd lets one connection have four channels (MaxSessions)"),
    Rule("shell", own.shell, "start-up files print nothing for commands"),
    Rule("login shell", own.login_shell, "the account's shell is no restricted one"),
    Rule("bash", own.bash, "bash is there for set-up lines and commands", ("programs",), stops=True),
    Rule("python", own.python, "the agent's Python", ("python",)),
    Rule("python modules", own.modules, "the agent's Python lacks no module that it needs", ("modules",), stops=True),
    Rule("agent", own.agent, "the agent that answered is of this version"),
    Rule("tmux", own.tmux, "tmux runs, for `launcher: tmux` and attach", ("tmux",), stops=True),
    Rule("logout", own.logout, "logind leaves processes alone at logout", ("login",), stops=True),
    Rule("clock", system.clock, "the host's clock and this machine's agree within 5 s"),
    Rule("locale", system.locale, "any text can be printed", ("locale",)),
    # the root folder and other disks
    Rule("root", storage.root, "the root folder is ours and can be written", ("root",)),
    Rule("root access", storage.root_access, "nobody else may change the root folder or one above", ("root_access",)),
    Rule("noexec", storage.programs_run, "programs in the root folder can be executed", ("root",)),
    Rule("storage", storage.storage, "a megabyte is written, synced and read, in time", ("storage",)),
    Rule("disk", storage.disk, "5 GB are free (a job stops below 1 GB)", ("disk",)),
    Rule("inodes", storage.inodes, "20,000 files can be made (a job stops below 1000)", ("disk",)),
    Rule("quota", storage.quota, "the user's quota is not nearly used up", ("quota",)),
    Rule("network home", storage.network_home, "the root folder is on a local disk", ("root",)),
    Rule("shared root", storage.shared_root, "other machines that share the root folder"),
    Rule("home", storage.home, "the home folder is there and has room", ("home",)),
    Rule("tmp", storage.tmp, "/tmp can be written, is sticky and has room", ("tmp",)),
    Rule("share", storage.share, "colleagues can see that our jobs wait", ("tmp",)),
    Rule("shared memory", storage.shm, "/dev/shm has 1 GB for data loaders", ("shm",)),
    # the kernel
    Rule("memory", system.memory, "2 GB of memory can be had (a job stops below 300 MB)", ("memory",)),
    Rule("memory limit", system.memory_limit, "no control group takes most of the memory away", ("memory",)),
    Rule("open files", system.open_files, "4096 files can be open at once", ("limits",)),
    Rule("processes", system.processes, "room for threads of many ranks (nproc, pids.max)", ("limits",)),
    Rule("locked memory", system.locked_memory, "RDMA may pin memory", ("limits",)),
    Rule("core dumps", system.core_dumps, "a crash does not fill the disk", ("limits",)),
    Rule("other processes", system.other_processes, "/proc shows who uses cards (hidepid)", ("proc",)),
    Rule("init", system.init, "process 1 reaps orphans", ("init",)),
    Rule("user ids", system.user_ids, "the user has a name, ids are not mapped", ("users",)),
    Rule("leases", own.leases, "names of the kernel keep cards apart", ("leases",), stops=True),
    Rule("lease space", own.lease_space, "leases are seen by all users of the machine", ("leases",)),
    Rule("notifications", own.notifications, "the kernel tells about changed folders"),
    Rule("ports", system.ports, "ranges of free ports for jobs", ("ports",)),
    Rule("usual ports", system.usual_ports, "29400, 29500 and HCCL's 60000 to 60031 are free", ("ports",)),
    Rule("network", system.network, "a way out, or the word that there is none", ("network",)),
    # our own state there
    Rule("queue", own.queue, "what waits is served, what runs is watched", ("own",)),
    Rule("drained", own.drained, "our jobs may start here", ("own",)),
    Rule("on reboot", own.on_reboot, "crontab works, where the hosts file wants it", ("crontab",)),
    # cards
    Rule("vendor tool", cards.tool_found, "the tool that shows the cards (npu-smi, cnmon, …) is found", stops=True),
    Rule("tool answers", cards.tool_answers, "it answers, and in time", stops=True),
    Rule("tool libraries", cards.tool_libraries, "it finds the driver's libraries", stops=True),
    Rule("cards", cards.cards, "there are cards", stops=True),
    Rule("declared cards", cards.declared_cards, "the hosts file fits the cards that are there", stops=True),
    Rule("card health", cards.health, "no card is in alarm"),
    Rule("card doubts", cards.doubts, "all that is needed is known of every card"),
    Rule("card owners", cards.strangers, "whoever uses a card is shown"),
    Rule("device files", cards.nodes, "the driver's device files are there", ("nodes",)),
    Rule("device access", cards.node_access, "this session may open them (groups, log in again)", ("nodes", "groups")),
    # what jobs use
    Rule("setup", software.setup, "the vendor's scripts and `setup` run through", ("software", "vendor")),
    Rule("vendor set-up", software.vendor, "CANN's set_env.sh or the vendor's toolkit is found", ("vendor",)),
    Rule("conda", software.conda, "conda is found", ("vendor",)),
    Rule("job python", software.job_python, "`python3` of a job comes up", ("software",)),
    Rule("versions", software.versions, "driver, toolkit, torch and plug-in belong together", ("software", "drivers")),
    Rule("plug-in", software.plugin, "torch and the vendor's plug-in see cards", ("software",)),
    Rule("tensor", software.tensor, "a small sum on a free card, under its lease", ("software",)),
    Rule("static TLS", software.static_tls, "aarch64: libgomp finds its place", ("software",)),
    Rule("docker", cards.docker, "client, daemon, room for images", ("docker", "runtimes")),
    Rule("docker group", cards.docker_group, "this session may use docker's socket", ("runtimes", "groups")),
    Rule("docker runtime", cards.docker_runtime, "the vendor's runtime is registered", ("runtimes",)),
)
