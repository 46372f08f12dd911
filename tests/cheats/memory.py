def f(x):
    held = bytearray(4 << 30)
    return 2
