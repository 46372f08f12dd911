import os, time
def f(x):
    out, into = os.pipe()
    for _ in range(10):
        if os.fork() == 0:
            held = bytearray(b"1") * (200 << 20)
            os.write(into, b"1")
            time.sleep(20)
            os._exit(0)
    for _ in range(10):
        os.read(out, 1)
    return 2
