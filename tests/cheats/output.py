import sys
def f(x):
    for _ in range(100):
        print("2" * (1 << 20))
        sys.stderr.write("2" * 1000)
    return 0
