"""What a process asks the kernel for itself, without the price of ctypes as a whole."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def prctl(option, value):
    """The system call, or False where there is no way to make it."""
    try:
        import _ctypes

        return _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"), (option, value, 0, 0, 0)) == 0
    except (ImportError, AttributeError, OSError):
        return False


def become_subreaper():
    """Orphaned descendants become our children instead of init's. False where the kernel cannot be asked."""
    return prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number):
    """This process gets a signal when its parent dies; 0 ends that."""
    return prctl(_PR_SET_PDEATHSIG, number)


def trim():
    """Give memory that only the start needed (reading and compiling modules) back to the kernel."""
    try:
        import _ctypes

        _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "malloc_trim"), (0,))
    except (ImportError, AttributeError, OSError):
        pass  # another C library: a little more memory stays


def name_process(name):
    """Show this process under a name (at most 15 bytes) in `ps -o comm` and `top`."""
    return prctl(_PR_SET_NAME, name)
