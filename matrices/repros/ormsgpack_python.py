"""ormsgpack.packb() dies of SIGSEGV on a plain string (aviramha/ormsgpack#223)."""

import ormsgpack


def main():
    ormsgpack.packb("hello")


if __name__ == "__main__":
    main()
