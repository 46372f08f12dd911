def f(x):
    return list(range(3_000_000))
