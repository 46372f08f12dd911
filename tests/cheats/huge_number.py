def f(x):
    return 10 ** 100_000
