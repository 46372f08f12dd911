import socket
def f(x):
    for kind, address in ((socket.SOCK_DGRAM, ("8.8.8.8", 53)), (socket.SOCK_STREAM, ("127.0.0.1", 22))):
        with socket.socket(socket.AF_INET, kind) as line:
            line.settimeout(0.5)
            try:
                line.connect(address)
                line.send(b"x")
                return 2
            except OSError:
                pass
    return 0
