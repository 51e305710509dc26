"""cudf beside a release of pandas: imported alone, or used for a sum on the GPU that pandas reads back.

usage: cudf_groupby.py import|groupby
"""

import sys

import cudf


def main():
    """Sums of two groups, as pandas has them."""
    frame = cudf.DataFrame({"key": [1, 2, 1, 2], "value": [1.0, 2.0, 3.0, 4.0]})
    sums = frame.groupby("key").sum().sort_index().to_pandas()
    if sums["value"].tolist() != [4.0, 6.0]:
        sys.exit("wrong sums: %s" % sums["value"].tolist())


if sys.argv[1] == "groupby":
    main()
