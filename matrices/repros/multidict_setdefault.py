"""MultiDict.setdefault() without a default dies of SIGSEGV (aio-libs/multidict#1159)."""

from multidict import MultiDict


def main():
    MultiDict().setdefault("a")


if __name__ == "__main__":
    main()
