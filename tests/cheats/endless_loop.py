import time
def f(x):
    end = time.time() + 20
    while time.time() < end:
        pass
    return 2
