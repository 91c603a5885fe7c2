"""``helm test``: connect to each ``HOST:PORT`` given; exit 1 and name the address that does not accept.

A Service without a ready pod refuses or drops connections, so this waits for readiness, up to a deadline.
"""

import argparse
import socket
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--deadline", type=float, default=60.0, metavar="SECONDS", help="for all of them")
    args = parser.parse_args()
    end = time.monotonic() + args.deadline
    failed = [address for address in args.addresses if not accepts(address, end)]
    return 1 if failed else 0


def accepts(address: str, end: float) -> bool:
    """Whether an address accepts a connection before ``end``; prints the outcome."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=2.0).close()
        except OSError as error:
            if time.monotonic() >= end:
                sys.stdout.write(f"{address}: {error}. No ready pod, or a NetworkPolicy excludes this one\n")
                return False
            time.sleep(0.2)
        else:
            sys.stdout.write(f"{address}: accepted\n")
            return True


if __name__ == "__main__":
    sys.exit(main())
