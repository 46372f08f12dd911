import os, time
def f(x):
    for _ in range(300):
        try:
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
        except OSError:
            return 0
    return 2
