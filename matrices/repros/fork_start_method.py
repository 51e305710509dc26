"""A task that is started with `fork` by a parent with live threads hangs; started otherwise it does not.

What Airflow's tasks met with CUDA, without a GPU: the worker has used a library that keeps a thread and a lock
of its own, and forks. The child has the lock as it was at that moment, and not the thread that would give it
back. `fork_start_method_cuda.py` beside this is the same with a real CUDA context.
"""

import multiprocessing
import subprocess
import sys
import threading
import time


class Library:
    """Works in a thread of its own, and holds its lock while it does: nearly always."""

    def __init__(self):
        self.lock = threading.Lock()
        self.thread = None

    def work(self):
        while True:
            with self.lock:
                time.sleep(0.02)
            time.sleep(0.001)

    def use(self):
        """Begin the thread if this process has none yet, and ask it for something."""
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, daemon=True)
            self.thread.start()
        with self.lock:
            return 1


library = Library()


def task():
    """What the child does: it uses the library, as its parent did."""
    library.use()


def main():
    """Use the library, then run the task in a child that is started in the way that was asked for."""
    method = sys.argv[1]
    library.use()
    time.sleep(0.1)  # the next task comes when it comes
    if method == "subprocess":
        sys.exit(subprocess.run([sys.executable, __file__, "task"]).returncode)
    child = multiprocessing.get_context(method).Process(target=task)
    child.start()
    child.join()
    sys.exit(child.exitcode)


if __name__ == "__main__":
    task() if sys.argv[1] == "task" else main()
