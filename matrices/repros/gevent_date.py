"""gevent dies of SIGSEGV when its greenlets switch (gevent/gevent#1678).

gevent itself is pinned; what it was compiled against changed under it.
"""

import warnings

# Such a mismatch also warns at import; only what happens next counts here.
warnings.simplefilter("ignore")

import gevent  # noqa: E402


def echo(i):
    gevent.sleep(0)
    return i


def main():
    greenlets = [gevent.spawn(echo, i) for i in range(10)]
    gevent.joinall(greenlets)
    assert [greenlet.value for greenlet in greenlets] == list(range(10))


if __name__ == "__main__":
    main()
