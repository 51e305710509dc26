"""A child process hangs when it is forked while another thread logs (Delgan/loguru#231).

The thread may hold the handler's lock at the moment of the fork. The child then has the lock but
not the thread that would release it, and waits for ever in its first logging call.
"""

import multiprocessing
import threading
import time

from loguru import logger

CHILDREN = 3


def slow_sink(message):
    """Holds the handler's lock for a while with every message."""
    time.sleep(0.0005)


def log_until(stop):
    while not stop.is_set():
        logger.trace("from the thread")
        time.sleep(0.01)


def log_once():
    logger.debug("from the child")


def main():
    logger.remove()
    logger.add(slow_sink, level="TRACE")
    stop = threading.Event()
    thread = threading.Thread(target=log_until, args=(stop,), daemon=True)
    thread.start()
    time.sleep(0.05)
    for _ in range(CHILDREN):
        child = multiprocessing.Process(target=log_once)
        child.start()
        child.join()
    stop.set()
    thread.join()


if __name__ == "__main__":
    main()
