"""The search for the first bad combination: hypotheses, posterior, what to try next, when to stop. Pure.

Pure code has no clock and does no I/O; random numbers come from a given or a fixed seed. The terms of this
package, each defined with the ones before it:

* *lattice*, *cell*: the lattice is the array of all combinations, one dimension per axis. A cell is one
  combination, written as an `Index`: the position of its value on each axis.
* *group*, *representative*: combinations whose trials would be equal (the same lock, for example) form a
  group. One of them, the representative, is tried for all.
* *neighbours*: two cells that differ on one axis, with no cell that can be run between them. On an axis
  without order, any two values are neighbours.
* *direction*: the assumption about which values of an axis are bad, such as "all from some value on".
* *family*: all sets of bad values that the direction of one axis allows, with their prior probabilities.
* *hypothesis*: one possible set of bad combinations. Most hypotheses choose one set of each axis's family.
* *generator*: a function that returns hypotheses with their priors (`generators.py`).
* *pattern*: the hypotheses that call the same tried cells bad. They have one likelihood.
* *pair*: the answer where no hypothesis explains the trials: a bad cell and a good neighbour, without a claim
  about other cells.
* *stage*: a search over some values of each axis of a large lattice. The next stage has the values around the
  boundary that it found.

Letters for array shapes, unless a module says otherwise: H hypotheses, P patterns, X groups of combinations,
J pairs of a typical failure rate and a spread (*columns*), R failure rates, K background rates.
"""
