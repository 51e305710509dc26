"""orjson.dumps() reads beyond the end of a string and dies of SIGSEGV (ijl/orjson#452).

The overread is harmless unless the string ends at the end of a mapped page. Large strings get
mappings of their own; freeing every second one leaves holes that a read may run into. Where the
kernel puts the mappings differs from run to run, and so does the outcome.
"""

import random

import orjson

STRINGS = 60
SIZES = (200_000, 400_000)  # above malloc's threshold for mmap


def main():
    strings = ["\n".ljust(random.randrange(*SIZES), "x") for _ in range(STRINGS)]
    for i in range(0, STRINGS, 2):
        strings[i] = None
    for text in strings:
        if text is not None:
            orjson.dumps(text)


if __name__ == "__main__":
    main()
