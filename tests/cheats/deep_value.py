def f(x):
    a = []
    for _ in range(100000):
        a = [a]
    return a
