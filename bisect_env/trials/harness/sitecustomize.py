"""Writes to a file which phase a trial's script has reached, and which packages it really imported.

Python runs a module named `sitecustomize` at its start, before the script. The directory of this one is put
first on PYTHONPATH, only for the interpreter that a trial's command starts. The module first removes that
directory and its own variables again. So the script, and every process that it starts, sees the same paths
and variables as without this module. Then a `sitecustomize` of the environment itself is run, if any.

The *mark*, the first byte of the file, is the phase: `S` start, `I` import, `B` body, `T` teardown, `F` all
`atexit` handlers have finished, `?` imports cannot be observed. If an exception that nobody handled ended the
script, `U` and `V` stand for `T` and `F`. After the mark, the file has a line for each watched module that
was imported: module, `__version__` and file. The file is opened anew for every write. So no descriptor stays
open, the script's descriptors have the same numbers as usual, and the marks survive a crash.

This file must run in every Python from 2.7 on, so it has no annotations and no newer syntax.
"""

import os
import sys

MARKS = "BISECT_ENV_HARNESS_MARKS"
MODULES = "BISECT_ENV_HARNESS_MODULES"
PYTHONPATH = "BISECT_ENV_HARNESS_PYTHONPATH"
GC = "BISECT_ENV_HARNESS_GC"
LINGER = "BISECT_ENV_HARNESS_LINGER"


def _take_away(here):
    """Remove the harness's own variables and directory from the environment and from `sys.path`.

    Return the path of the file for marks (None if this process is not to be watched), the names of the
    modules to watch, and the seconds to wait at the end. `here` is the directory of the harness.
    """
    marks = os.environ.pop(MARKS, None)
    modules = os.environ.pop(MODULES, "").split()
    original = os.environ.pop(PYTHONPATH, None)
    threshold = os.environ.pop(GC, None)
    linger = float(os.environ.pop(LINGER, 0))
    if threshold is not None:
        import gc  # like all imports below, only where needed, because the script would find it loaded

        gc.set_threshold(int(threshold))
    if marks is not None:
        if original is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = original
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    return marks, modules, linger


def _writer(path, flags):
    """Return a function that writes bytes to the file `path`.

    The function works even if the script has replaced functions of `os`. `flags` are additional flags of
    `os.open`. With `os.O_APPEND` bytes go to the end of the file, otherwise to its beginning.
    """
    os_open, os_write, os_close, getpid, pid = os.open, os.write, os.close, os.getpid, os.getpid()
    flags |= os.O_WRONLY | os.O_CLOEXEC

    def write(data):
        if getpid() != pid:
            return  # a process that the script forked, which is not watched
        # Errors are not reported: the script would see them. They happen if no descriptor is free, if the
        # disk is full or if the script changed its root directory. The trial then has the last phase that
        # could be written, and its list of imports lacks a module, which says nothing about that module.
        try:
            fd = os_open(path, flags)
        except (OSError, ValueError):
            return
        try:
            os_write(fd, data)
        except OSError:
            pass  # as above
        finally:
            os_close(fd)

    return write


def _looker(path, wanted):
    """Return a function that writes down which modules in `wanted` were imported since the previous call.

    The function appends one line per module to the file `path`. The first line, for `python` itself, is
    written at once.
    """
    write, getpid, pid = _writer(path, os.O_APPEND), os.getpid, os.getpid()
    left = list(wanted)

    def note(*fields):
        line = "\t".join(str(one).replace("\t", " ").replace("\n", " ") for one in fields) + "\n"
        write(line.encode("utf-8", "replace"))

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
                # `getattr` could run code of a lazy module, or print its deprecation warnings.
                facts = object.__getattribute__(module, "__dict__")
                version, file = facts.get("__version__"), facts.get("__file__")
            except Exception:
                # A program can put any object into `sys.modules`. The error must not reach the program, which
                # would not have had it by itself; the list of imports then lacks this name.
                continue
            if isinstance(file, str):
                note(name, version if isinstance(version, str) else "", file)

    note("python", ".".join(str(part) for part in sys.version_info[:3]), sys.executable or "")
    return look


def _watch_imports(mark, look, ending):
    """Arrange that `mark` is called when the main thread begins and ends an import.

    Imports within another import are not marked, nor are those of `atexit` handlers and destructors, for
    which `ending` is not empty. At the end of an import, `look` is called, too. The import system takes a
    lock for every import of a module that is not loaded yet. The class of this lock is replaced by one that
    writes marks, which adds no frames to the stacks of imported code.

    Return whether imports can be seen so, which a Python newer than this file may have changed.
    """
    import _frozen_importlib as bootstrap
    from _thread import get_ident

    lock, main, depth = bootstrap._ModuleLock, get_ident(), [0]

    def enter():
        if get_ident() == main:
            depth[0] += 1
            if depth[0] == 1 and not ending:
                mark(b"I")

    def leave():
        if get_ident() == main:
            depth[0] -= 1
            if depth[0] == 0:
                look()
                if not ending:
                    mark(b"B")

    class _ModuleLock(lock):
        def acquire(self):
            enter()
            try:
                return lock.acquire(self)
            except BaseException:
                leave()  # `release` is not called if `acquire` fails
                raise

        def release(self):
            try:
                return lock.release(self)
            finally:
                leave()

    class _Probe(lock):
        def acquire(self):
            found.append(self)
            return lock.acquire(self)

        def release(self):
            return lock.release(self)

    # Import a small built-in module, which searches no path, to see whether the import system takes the lock.
    found = []
    unloaded = set(sys.builtin_module_names) - set(sys.modules)
    name = next((name for name in _PROBES if name in unloaded), None)
    if name is None:
        return False
    bootstrap._ModuleLock = _Probe
    try:
        __import__(name)
    finally:
        sys.modules.pop(name, None)
        bootstrap._ModuleLock = _ModuleLock if found else lock
    return bool(found)


_PROBES = ("xxsubtype", "_symtable", "_string")


def _watch_exit(mark, look, linger):
    """Arrange that `mark` is called before the first and after the last `atexit` handler.

    Return a list that is empty until the first handler begins.

    Handlers run in reverse order of their registration, so the first mark is registered again after each
    handler of the script. After the last handler, the interpreter waits for `linger` seconds, so that the
    process still exists for other programs that report about it, such as the CUDA driver.
    """
    import atexit

    ending = []

    def teardown():
        if not ending:
            ending.append(1)
            look()
            mark(b"U" if hasattr(sys, "last_type") else b"T")

    def finished():
        mark(b"V" if hasattr(sys, "last_type") else b"F")
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
    return ending


def _begin(here):
    path, modules, linger = _take_away(here)
    if path is None:
        return  # a subinterpreter, or a process that inherited only the path
    if sys.version_info < (3, 6) or sys.implementation.name != "cpython":
        with open(path, "r+b") as marks:
            marks.write(b"?")
        return
    mark = _writer(path, 0)
    look = _looker(path, modules)
    try:
        sees_imports = _watch_imports(mark, look, _watch_exit(mark, look, linger))
    except Exception:
        # This interpreter is implemented differently. The trial continues without its error, which the script
        # would not have had by itself.
        sees_imports = False
    # With `?` the phase in the trial's record is `unknown`, as long as the script has not begun to end.
    mark(b"B" if sees_imports else b"?")


_begin(os.path.dirname(os.path.abspath(__file__)))
# Run the environment's own `sitecustomize`; without one, this raises the ImportError that `site` expects.
sys.modules.pop("sitecustomize", None)
import sitecustomize  # noqa: E402, F401
