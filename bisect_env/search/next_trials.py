"""Choose the next trials as long as no answer stands. Pure.

Trials that an answer still needs come first, then stated ends, then the trials with the most expected
information (`choice.py`). Two rules narrow this: if no cell both failed and passed, one trial of each cell
and a few repetitions are enough; and if nothing failed yet, a repetition tells less than an untried cell.

Cells are given by the positions of their groups; X in array shapes is the number of groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.search.choice import Choice
from bisect_env.search.families import FloatArray
from bisect_env.search.known import MOST_SWEPT, REPEATED, SPARE, Known, evenly

_LEAST_WORTH = 0.2
"""Minimum worth of an additional trial, as a share of the best one's worth."""
_CANDIDATES = 96
_END_CERTAINTY, _END_FAILURES, _END_TRIALS = 0.9, 3, 180
"""Minimum prior probability of the bad end; and, for flaky failures, the number of its failures and of its
trials up to which it is tried first."""
_DECIDES = 0.1
"""Minimum information of the best trial that is possible, as a share of that of a trial which is not."""
_UNSEEN = 7
"""Number of trials of a bad end that nobody stated before others are tried, if nothing failed."""


@dataclass(frozen=True, eq=False)
class NextTrials:
    """A decision about the next trials, given all results so far and the trials that are running.

    Attributes:
        known: The posterior, labels and best answer so far.
        running: Number of running trials of each cell.
        prices: Price of each cell's environment as a number of trials, 0 if it exists; shape (X,).
        allowed: True for the cells to choose from, shape (X,).
    """

    known: Known
    running: Mapping[int, int]
    prices: FloatArray
    allowed: NDArray[np.bool_]

    def choose(self, count: int) -> list[int]:
        """Return the combinations to try next, at most `count`, with one entry per trial."""
        known, allowed = self.known, self.allowed
        room = self._room(count)
        if not known.lawless and (again := self._failure_again(count)):
            return again
        chosen: list[int] = []
        for cell, wanted in known.wanted:
            if allowed[cell]:
                lacking = wanted - int(self._trials[cell])
                chosen += [cell] * min(max(lacking, 0), room - len(chosen))
        if chosen or (known.sure and known.wanted):
            return chosen
        if known.lawless:
            return self._on_path(count)
        if self._is_stuck():
            return []
        if first := self._ends_first() or self._bad_end_first(count):
            return first[:count]
        count = min(count, room)
        if count <= 0:
            return []
        found = self.most_telling(count, known.sides_to_repeat & allowed)
        if found := self._with_few_repetitions(found) if self.running else found:
            return found
        if found := self._with_few_repetitions(self.most_telling(count, self._worth_trying() & allowed)):
            return found
        if any(not known.counts.trials[cell] for cell in self.running):
            # Only their results show whether a repetition is worth a trial.
            return []
        return self.most_telling(count, allowed)

    def _is_stuck(self) -> bool:
        """Return whether only combinations that get no more trials could still decide the answer.

        They were tried, and are skipped since, or left out by the user. Trials of the others would go on for
        ever without making the answer sure.
        """
        known = self.known
        closed = (known.counts.trials > 0) & ~known.can_run
        if not closed.any() or not known.counts.hits.any():
            return False
        cells = np.flatnonzero(known.can_run | closed)
        information = Choice(known.belief, cells).information(of_rates=False)
        best = float(information[known.can_run[cells]].max(initial=0.0))
        return best < _DECIDES * float(information.max())

    def _room(self, count: int) -> int:
        """Return how many of the `count` requested trials may start now, before others have ended.

        As long as no combination both failed and passed, one trial of each combination and a few repetitions
        should be enough. Once so many have run or are running, further repetitions wait for the running
        trials, because their results make most repetitions unnecessary.
        """
        known = self.known
        if not (known.unanimous and known.counts.hits.any()):
            return count
        room = known.enough_trials - int(self._trials.sum())
        return max(min(count, room), 0) if room > 0 or self.running else count

    def are_worth(self, share: float) -> bool:
        """Return whether the best allowed trial gives at least `share` of the information of the best one."""
        cells = self._candidates(self.known.can_run)
        information = Choice(self.known.guide, cells).information()
        among = information[self.allowed[cells]]
        return bool(len(among)) and bool(among.max() >= share * information.max())

    @cached_property
    def _trials(self) -> NDArray[np.int64]:
        """Return the number of trials of each cell, including running ones, shape (X,)."""
        trials = self.known.counts.trials.copy()
        for cell, number in self.running.items():
            trials[cell] += number
        return trials

    # -- what comes before others ------------------------------------------------------------------------

    def _ends_first(self) -> list[int]:
        """Return trials of the stated bad and good ends that must run before all others.

        They show whether the statements are true on this machine. The list is empty if the bad end is not
        stated. A good end that failed is tried three times, because there may be nothing to search for.
        """
        counts, grid, group = self.known.counts, self.known.view.grid, self.known.view.group
        if grid.bad is None:
            return []
        cells = [int(group[end]) for end in (grid.bad, grid.good) if end is not None]
        cells = [cell for cell in dict.fromkeys(cells) if cell >= 0 and self.allowed[cell]]
        if untried := [cell for cell in cells if not self._trials[cell]]:
            return untried
        good = -1 if grid.good is None else int(group[grid.good])
        if good not in cells or not 0 < counts.hits[good] == counts.trials[good] < REPEATED:
            return []
        return [good] * (REPEATED - int(self._trials[good]))

    def _bad_end_first(self, count: int) -> list[int]:
        """Return trials of the bad end, or an empty list if other trials should run first.

        The bad end comes first as long as nothing failed, and again once a failure is known to be flaky,
        because knowing its rate makes every later step cheaper.
        """
        known, running = self.known, self.running
        hits, trials = known.counts.hits, known.counts.trials
        number = max(1, -(-count // 2))
        if not hits.any():
            cell = self._bad_end
            wants = cell >= 0 and self._bad_end_next(cell)
            if wants and any(not trials[other] for other in running):
                # Others may fail, which shows how often this one should be repeated.
                number = min(number, REPEATED + self._paid_by_repetition - int(self._trials[cell]))
        elif known.unanimous:
            return []
        else:
            cell = self._bad_end
            wants = cell >= 0 and hits[cell] < _END_FAILURES and trials[cell] < _END_TRIALS
            wants = wants and hits[cell] < max(trials[cell], 1) and known.belief.bad[cell] >= 0.5
            wants = wants and running.get(cell, 0) < REPEATED
        if not wants or number <= 0 or not self.allowed[cell]:
            return []
        # Only the result of a cell's first trial shows how often to repeat it.
        return [cell] * (number if trials[cell] else 1)

    def _failure_again(self, count: int) -> list[int]:
        """Return repetitions of one combination that failed, once there were enough trials to try each one.

        After three failures of one combination, the search assumes that bad combinations fail in every trial,
        and needs no other repetitions. The list is empty before, and if a combination both failed and passed.
        """
        known = self.known
        hits = known.counts.hits
        if not known.unanimous or not hits.any() or int(self._trials.sum()) < known.enough_trials:
            return []
        # The trials of a cell that failed are failures, those that are running as well.
        failures = np.where(hits > 0, self._trials, 0)
        cell = int(failures.argmax())
        return [cell] * min(count, REPEATED - int(failures[cell])) if self.allowed[cell] else []

    def _bad_end_next(self, end: int) -> bool:
        """Return whether to try the bad end next, for studies in which no trial has failed yet.

        A stated bad end is tried until it fails. Any other may be good: it is tried `_UNSEEN` times, and more
        often if environments are expensive. After that, it is tried while the environments so far cost too
        much (`_outruns_trials`), and once enough other combinations were tried.
        """
        trials = self._trials
        if not trials.any():
            return False
        if not self.known.counts.trials[end] and self.running.get(end):
            return False
        if self.known.view.grid.bad is not None or trials[end] < _UNSEEN + self._paid_by_repetition:
            return True
        is_swept = int(np.count_nonzero(trials)) >= min(MOST_SWEPT, int(np.count_nonzero(self.known.can_run)))
        return is_swept or self._outruns_trials()

    @property
    def _paid_by_repetition(self) -> int:
        """Return how many trials of the bad end take as long as building two further environments."""
        return round(2 * float(np.median(self.prices)))

    @cached_property
    def _bad_end(self) -> int:
        """Return the position of the stated bad end, or else of the combination that is most probably bad.

        Returns -1 if no bad end is stated and every combination has a prior below `_END_CERTAINTY`, or if the
        stated bad end cannot be run.
        """
        view = self.known.view
        if view.grid.bad is not None:
            return int(view.group[view.grid.bad])
        prior = np.where(self.known.can_run, self.known.rows.prior_bad, -1.0)
        cell = int(prior.argmax())
        return cell if prior[cell] >= _END_CERTAINTY else -1

    def _outruns_trials(self) -> bool:
        """Return whether the trials so far are too few to justify building another environment.

        This is so if an environment for each tried combination would cost more than twice all trials.
        """
        trials = self._trials
        return bool(np.median(self.prices) * np.count_nonzero(trials) > 2 * trials.sum())

    # -- what tells most ---------------------------------------------------------------------------------

    def most_telling(self, count: int, allowed: NDArray[np.bool_]) -> list[int]:
        """Return the combinations of at most `count` trials whose results tell most for their cost.

        Args:
            count: Maximum number of trials.
            allowed: True for the cells to choose from, shape (X,).
        """
        cells = self._candidates(allowed)
        if not len(cells):
            return []
        known = self.known
        choice = Choice(known.guide, cells)
        place = {int(cell): i for i, cell in enumerate(cells)}
        waiting = [place[cell] for cell, n in self.running.items() if cell in place for _ in range(n)]
        # Untried cells are tried once each.
        once = known.unanimous and not known.counts.trials[cells].any()
        chosen = choice.batch(count, waiting, self.prices[cells], _LEAST_WORTH, once=once)
        return [int(cells[i]) for i in chosen]

    def _worth_trying(self) -> NDArray[np.bool_]:
        """Return which combinations to prefer for the next trials, as a boolean array of shape (X,).

        These are either all that can be run, or only untried ones. Untried ones are preferred as long as
        nothing failed, unless environments cost too much; and after `SPARE` repetitions if no combination
        both failed and passed. After `MOST_SWEPT` combinations were tried, there is no preference until all
        were tried; then the array is all False.
        """
        can_run = self.known.can_run
        if not self.known.unanimous:
            return can_run
        trials = self._trials
        tried = int(np.count_nonzero(trials))
        if self.known.counts.hits.any():
            is_new = int(trials.sum()) - tried >= SPARE
        else:
            is_new = not self._outruns_trials()
        untried = can_run & (trials == 0)
        return np.asarray(untried) if is_new and (tried < MOST_SWEPT or not untried.any()) else can_run

    def _with_few_repetitions(self, chosen: list[int]) -> list[int]:
        """Return `chosen` with few repetitions, as long as no combination both failed and passed.

        At most `SPARE` repetitions are kept, and none of a combination whose first trial is still running.
        """
        if not (self.known.unanimous and self.known.counts.hits.any()):
            return chosen
        trials = self._trials.copy()
        kept = []
        for cell in chosen:
            repetitions = int(trials.sum()) - int(np.count_nonzero(trials))
            if not trials[cell] or (self.known.counts.trials[cell] and repetitions < SPARE):
                kept.append(cell)
                trials[cell] += 1
        return kept

    def _candidates(self, allowed: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the positions of at most `_CANDIDATES` combinations to choose from.

        They are the most doubtful ones, the ones with the most trials, and some others.
        """
        known = self.known
        cells = np.flatnonzero(allowed & known.can_run)
        if len(cells) <= _CANDIDATES:
            return cells
        bad = known.guide.bad[cells]
        doubtful = np.argsort(np.abs(bad - 0.5), kind="stable")[: _CANDIDATES // 2]
        others = evenly(np.argsort(bad, kind="stable"), _CANDIDATES // 4)
        tried = np.flatnonzero(known.counts.trials[cells])
        often = tried[np.argsort(-known.counts.trials[cells][tried], kind="stable")][: _CANDIDATES // 4]
        return np.asarray(cells[np.unique(np.concatenate([doubtful, others, often]))])

    # -- where no rule holds -----------------------------------------------------------------------------

    def _on_path(self, count: int) -> list[int]:
        """Return trials for a search without hypotheses, which halves the path from bad to good.

        Tried combinations on the path whose label is still open come first, then the one in its middle. If
        there is no path yet, any combinations without a label are chosen.
        """
        known = self.known
        chunk = 1 if known.unanimous else max(1, known.usual_trials // 2)
        found, labels = known.path, known.labels
        cells = [int(c) for c in known.counts.tried if labels[c] < 0 and known.can_run[c]]
        if found is not None and len(found) > 2:
            middle = [int(known.view.group[cell]) for cell in found[1:-1]]
            middle = [c for c in middle if labels[c] < 0 and known.can_run[c]]
            half = sorted(middle, key=lambda c: abs(middle.index(c) - len(middle) / 2))
            on = [c for c in cells if c in middle]
            cells = on or half[:1]
        elif found is None:
            rest = np.flatnonzero(known.can_run & (known.counts.trials == 0))
            cells += [int(c) for c in evenly(rest, count)]
        chosen: list[int] = []
        for cell in cells:
            if self.allowed[cell]:
                room = min(count - len(chosen), chunk - self.running.get(cell, 0))
                chosen += [cell] * max(room, 0)
        return chosen
