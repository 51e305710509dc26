"""In which phase a process ended, from the harness's marks and from stacks. Pure.

The phases are those of `docs/outcomes.md`: *start* until the interpreter is up, *import* while the main
thread imports a module that is not there yet, *body*, and *teardown* from the first handler of `atexit` on.
Threads that are still waited for belong to the body.
"""

from __future__ import annotations

from bisect_env.trials.exit_record import ExitRecord
from bisect_env.trials.records import Phase
from bisect_env.trials.tracebacks import final_traceback, parse_fatal_dump


def phase_of(record: ExitRecord) -> Phase:
    """Where a process was when it ended, or when it failed if it then ended in an orderly way.

    A mark of teardown is certain. Otherwise a stack is told rather than a mark: it is that of the thread that
    failed, and marks are those of the main thread; of a program that replaced itself (`exec`) marks are old.
    """
    if record.signal or record.timed_out or record.returncode is None:
        if record.marks.phase is Phase.TEARDOWN:
            return Phase.TEARDOWN
        dump = parse_fatal_dump(record.stderr)
        return dump.phase if dump is not None and dump.phase is not Phase.UNKNOWN else record.marks.phase
    traceback = final_traceback(record.stderr)
    if traceback is not None:
        return Phase.IMPORT if traceback.while_importing else Phase.BODY
    if record.marks.finished:
        return Phase.BODY  # it went through teardown after `sys.exit` had been called
    return record.marks.phase
