import zlib
def f(x):
    d = zlib.compress(b'0' * (1 << 24))
    return len(zlib.decompress(d * 1)) and [zlib.decompress(d) for _ in range(300)] and 0
