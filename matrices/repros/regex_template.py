"""regex dies of SIGSEGV when a replacement template refers to a group (mrabarnett/mrab-regex#422)."""

import regex

HEADER = """
Content-Type: multipart/mixed; boundary=Apple-Mail-UUID
"""


def main():
    pattern = regex.compile(r"\n(Content-[Tt]ype:\s*text/)")
    pattern.sub(r"\n\g<1>plain;", HEADER)


if __name__ == "__main__":
    main()
