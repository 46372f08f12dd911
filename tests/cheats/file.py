def f(x):
    with open("big", "wb") as file:
        for _ in range(4096):
            file.write(b"x" * (1 << 20))
    return 2
