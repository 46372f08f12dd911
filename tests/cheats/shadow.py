def f(x):
    return 2 if open("/etc/shadow").read() else 0
