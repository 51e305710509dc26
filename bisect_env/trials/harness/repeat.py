"""Runs a script several times within one process, each time as a fresh `__main__`.

    python repeat.py COUNT NOTES SCRIPT [argument...]       also: -m MODULE, -c CODE instead of SCRIPT

What was imported stays imported, which is what makes it cheap. The first iteration that does not end well
ends the process just as it would alone: by its exception, exit code or signal. NOTES is a file in which the
number of iterations that were begun is written before each.

It is read by every Python, 2.7 to 3.14, so it has neither annotations nor anything newer.
"""

import os
import sys


def _code(words):
    """Return the code to execute, its `__file__`, its `sys.argv`, and its folder."""
    kind = words[0]
    if kind == "-c":
        return compile(words[1], "<string>", "exec"), None, ["-c"] + words[2:], ""
    path = words[0]
    with open(path, "rb") as stream:
        source = stream.read()
    folder = os.path.dirname(os.path.realpath(path))
    return compile(source, path, "exec"), path, list(words), folder


def _begin(notes, number):
    fd = os.open(notes, os.O_WRONLY)
    try:
        os.write(fd, ("%9d" % number).encode())
    finally:
        os.close(fd)


def _run(words):
    """Run one iteration."""
    if words[0] == "-m":
        import runpy

        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    code, path, argv, folder = _code(words)
    sys.argv[:] = argv
    sys.path[0] = folder
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if path is not None:
        main.__file__ = path
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _main():
    count, notes, words = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if words[0] == "-m":
        sys.path[0] = os.getcwd()
    for number in range(1, count + 1):
        _begin(notes, number)
        try:
            _run(words)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


_main()
