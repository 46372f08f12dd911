import ctypes, os
def f(x):
    attach, libc = 16, ctypes.CDLL(None)
    return 2 if libc.ptrace(attach, os.getppid() or 1, None, None) == 0 else 0
