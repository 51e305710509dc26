"""Marks how far a trial's interpreter has come, and which packages it really imported.

Python runs a module of this name when it starts, before the script. This one stands in a directory that is
in front of PYTHONPATH for the one interpreter that a trial's command starts; the first thing it does is to
take that away again: the script, and every process that it starts, sees the paths and variables it would see
alone. A `sitecustomize` of the environment itself is then run as ever.

Marks are single bytes at the start of a file that is opened for each: no descriptor stays open, numbers of
descriptors do not shift, and what was written survives any crash. `S` start, `B` body, `I` import, `T`
teardown, `F` the handlers of `atexit` are done, `?` nothing can be marked. Behind them, a line for each
package that was looked for: module, `__version__`, file.

It is read by every Python, 2.7 to 3.14, so it has neither annotations nor anything newer.
"""

import os
import sys

MARKS = "BISECT_ENV_HARNESS_MARKS"
MODULES = "BISECT_ENV_HARNESS_MODULES"
PYTHONPATH = "BISECT_ENV_HARNESS_PYTHONPATH"
GC = "BISECT_ENV_HARNESS_GC"
LINGER = "BISECT_ENV_HARNESS_LINGER"


def _take_away(here):
    """Remove the harness's variables from the environment and return their values."""
    marks = os.environ.pop(MARKS, None)
    modules = os.environ.pop(MODULES, "").split()
    original = os.environ.pop(PYTHONPATH, None)
    threshold = os.environ.pop(GC, None)
    linger = float(os.environ.pop(LINGER, 0))
    if threshold is not None:
        import gc

        gc.set_threshold(int(threshold))
    if marks is not None:
        if original is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = original
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    return marks, modules, linger


def _marker(path):
    """Return a function that writes one mark; it works even if the script changes `os`."""
    os_open, os_pwrite, os_close, getpid, pid = os.open, os.pwrite, os.close, os.getpid, os.getpid()
    flags = os.O_WRONLY | os.O_CLOEXEC

    def mark(letter):
        if getpid() != pid:
            return  # a fork of the script: its marks are nobody's
        try:
            fd = os_open(path, flags)
        except (OSError, ValueError):
            return  # no descriptor is free, or the script has another root: the last mark stands
        try:
            os_pwrite(fd, letter, 0)
        except OSError:
            pass
        finally:
            os_close(fd)

    return mark


def _looker(path, wanted):
    """Return a function that notes which of the wanted modules have been imported."""
    os_open, os_write, os_close, getpid, pid = os.open, os.write, os.close, os.getpid, os.getpid()
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    left = list(wanted)

    def note(*fields):
        line = "\t".join(str(one).replace("\t", " ").replace("\n", " ") for one in fields) + "\n"
        try:
            fd = os_open(path, flags)
        except (OSError, ValueError):
            return
        try:
            os_write(fd, line.encode("utf-8", "surrogateescape"))
        except (OSError, UnicodeError):
            pass
        finally:
            os_close(fd)

    def look():
        if not left or getpid() != pid:
            return
        modules = sys.modules
        for name in left[:]:
            module = modules.get(name)
            if module is None:
                continue
            left.remove(name)
            try:
                # Not getattr: it would run a lazy module's code, or its deprecations.
                facts = object.__getattribute__(module, "__dict__")
                version, file = facts.get("__version__"), facts.get("__file__")
            except Exception:  # whatever a program puts among its modules
                continue
            if isinstance(file, str):
                note(name, version if isinstance(version, str) else "", file)

    note("python", ".".join(str(part) for part in sys.version_info[:3]), sys.executable or "")
    return look


def _watch_imports(mark, look):
    """Mark the outermost imports of the main thread.

    The import system takes a lock around every import of a module that is not loaded yet. Watching that
    lock adds no frame to the stacks of imported code.
    """
    import _frozen_importlib as bootstrap
    from _thread import get_ident

    lock, main, depth = bootstrap._ModuleLockManager, get_ident(), [0]

    class _ModuleLockManager(lock):
        def __enter__(self):
            if get_ident() == main:
                depth[0] += 1
                if depth[0] == 1:
                    mark(b"I")
            try:
                return lock.__enter__(self)
            except BaseException:
                self._left()
                raise

        def __exit__(self, *args, **kwargs):
            try:
                return lock.__exit__(self, *args, **kwargs)
            finally:
                self._left()

        def _left(self):
            if get_ident() == main:
                depth[0] -= 1
                if depth[0] == 0:
                    look()
                    mark(b"B")

    bootstrap._ModuleLockManager = _ModuleLockManager


def _watch_exit(mark, look, linger):
    """Mark the beginning and the end of the handlers of `atexit`, which run in reverse order.

    After the last handler the interpreter may stay for some seconds, so that another process that writes
    about it, such as CUDA's driver, still finds it.
    """
    import atexit

    state = []

    def teardown():
        if not state:
            state.append(1)
            look()
            mark(b"T")

    def finished():
        mark(b"F")
        if linger:
            import time

            time.sleep(linger)

    real = atexit.register

    def register(*args, **kwargs):
        result = real(*args, **kwargs)
        real(teardown)
        return result

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(register, name, getattr(real, name))
    real(finished)
    real(teardown)
    atexit.register = register


def _begin(here):
    path, modules, linger = _take_away(here)
    if path is None:
        return  # a subinterpreter, or a process that got the path alone
    if sys.version_info < (3, 6) or sys.implementation.name != "cpython":
        with open(path, "r+b") as marks:
            marks.write(b"?")
        return
    mark = _marker(path)
    look = _looker(path, modules)
    try:
        _watch_exit(mark, look, linger)
        _watch_imports(mark, look)
    except Exception:
        # An interpreter that is made otherwise: the trial goes on, and its marks say that they say nothing.
        mark(b"?")
        return
    mark(b"B")


_begin(os.path.dirname(os.path.abspath(__file__)))
# The environment's own, if it has one; otherwise the error says what `site` expects to hear.
sys.modules.pop("sitecustomize", None)
import sitecustomize  # noqa: E402, F401
