"""Importing duckdb after shapely crashes or hangs (shapely/shapely#1616).

Both bring C++ libraries of their own into the process, and the first one's symbols win. In the other
order (`--reverse`) all is well.
"""

import sys


def main():
    if "--reverse" in sys.argv:
        import duckdb  # noqa: F401
        import shapely.geometry  # noqa: F401
    else:
        import shapely.geometry  # noqa: F401, I001
        import duckdb  # noqa: F401


if __name__ == "__main__":
    main()
