"""lark's Earley parser gives a tree that depends on the hash seed (lark-parser/lark#1434).

In "a.?" the quantifier belongs to the dot, so that the tree has two factors. A parser that walks
over a set while it resolves the ambiguity sometimes takes "?" for a character of its own.
"""

import sys

from lark import Lark

GRAMMAR = """
start: factor+
?factor: atom quantifier?
quantifier: "*" | "+" | "?"
?atom: DOT | printable_char
printable_char: /[ -~]/
DOT: "."
"""


def main():
    tree = Lark(GRAMMAR).parse("a.?")
    return 0 if len(tree.children) == 2 else 1


if __name__ == "__main__":
    sys.exit(main())
