"""Study of part 8: what a sum of floats is worth, by the order of its additions, by the signs, magnitudes and count of its numbers."""

import itertools
import math

from cudalab.study import Study

COUNTS, FEW = tuple(2**i for i in range(6, 19, 2)), (32, 256)  # numbers of a sum: on a device, on the emulator
SUMS, FEW_SUMS, TERMS = 1024, 32, 2**22  # sums of a kind and count: on a device no more than have TERMS numbers, but at least FEW_SUMS
UNIT = 2.0**-24
COLOURS = dict(in_order="#b5532a", pairwise="#2f6ca3", kahan="#4f7d4f", neumaier="#7a5aa0", last_block="#222222")


def positive(rng, shape):
    return rng.random(shape)


def mixed_signs(rng, shape):
    return rng.standard_normal(shape)


def mixed_magnitudes(rng, shape):
    """Either sign, from a millionth to a million, evenly by magnitude."""
    return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-6, 6, shape)


def cancelling(rng, shape):
    """Large numbers that cancel in pairs, small ones between them: what is left is the sum of the small ones."""
    x = rng.standard_normal(shape)
    half = shape[0] // 4
    large = 1e6 * rng.standard_normal((half, shape[1]))
    x[:half], x[half:2 * half] = large, -large.astype("float32")
    return rng.permuted(x, axis=0)


INPUTS = dict(positive=positive, mixed_signs=mixed_signs, mixed_magnitudes=mixed_magnitudes, cancelling=cancelling)


def errors(sums, exact, magnitudes) -> dict:
    """Of sums of columns: error over the sum of magnitudes, which rounding can be held against; and over the sum itself, which is what a
    person sees of it."""
    import numpy as np
    error = np.abs(sums.astype(np.float64) - exact)
    return dict(error_rms_units=float(np.sqrt(np.mean((error / magnitudes) ** 2)) / UNIT),
                error_max_units=float((error / magnitudes).max() / UNIT),
                relative_error=float(np.median(error / np.maximum(np.abs(exact), 1e-300))))


def measure(place, progress):
    import numpy as np

    from cudalab import registry
    emulated = place.name == "emulator"
    steps = [*registry.ops()["order"].steps, registry.resolve_step("reduce/last_block")]
    work = list(itertools.product(INPUTS, FEW if emulated else COUNTS))
    for number, (kind, count) in enumerate(work):
        progress(number, len(work), "reduce/error")
        columns = FEW_SUMS if emulated else max(FEW_SUMS, min(SUMS, TERMS // count))
        x = INPUTS[kind](np.random.default_rng(count), (count, columns)).astype(np.float32)
        exact, magnitudes = np.array([math.fsum(column) for column in x.T.tolist()]), np.abs(x).sum(0, dtype=np.float64)
        for step in steps:
            if step.op.name == "order":
                problem = step.op.problem(dict(M=x.shape[1], N=count))
                sums, of = place.run(step.plan(problem), dict(x=x))["y"], x
            else:  # one sum a launch: a few of them
                of = x[:, :8]
                plan = step.plan(step.op.problem(dict(N=count)))
                sums = np.concatenate([place.run(plan, dict(x=np.ascontiguousarray(column)))["total"] for column in of.T])
            yield dict(order=step.name, numbers=kind, terms=count, sums=of.shape[1], **errors(sums, exact[:len(sums)], magnitudes[:len(sums)]))


def draw(axes, rows):
    for order in COLOURS:
        for kind, dashes in (("positive", "-"), ("mixed_magnitudes", (0, (4, 2)))):
            mine = [row for row in rows if (row["order"], row["numbers"]) == (order, kind)]
            if mine:
                axes.plot([row["terms"] for row in mine], [max(row["error_rms_units"], 1e-3) for row in mine], color=COLOURS[order],
                          linestyle=dashes, marker="o", markersize=3, label=f"{order}, {kind}".replace("_", " "))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("numbers of the sum")
    axes.set_ylabel("error (rms), in units of 2^-24 of the sum of magnitudes")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))


def conclude(rows):
    def of(order, kind):
        return sorted((row for row in rows if (row["order"], row["numbers"]) == (order, kind)), key=lambda row: row["terms"])

    said = []
    longest = max(row["terms"] for row in rows)
    ends = of("in_order", "positive")
    power = math.log(ends[-1]["error_rms_units"] / ends[0]["error_rms_units"]) / math.log(ends[-1]["terms"] / ends[0]["terms"])
    said.append(f"In order, the error of positive numbers grows as their count to the power {power:.2f}: {ends[-1]['error_rms_units']:.3g} "
                f"units of 2^-24 at {longest}.")
    others = {order: of(order, "positive")[-1]["error_rms_units"] for order in COLOURS if order != "in_order" and of(order, "positive")}
    said.append(f"At {longest} positive numbers: " + ", ".join(f"{order.replace('_', ' ')} {error:.2g}" for order, error in others.items())
                + " units; a float sum can be within half a unit.")
    lost = {order: of(order, "cancelling")[-1]["relative_error"] for order in COLOURS if of(order, "cancelling")}
    said.append("Where large numbers cancel, the median error of the sum itself is " +
                ", ".join(f"{error:.1e} ({order.replace('_', ' ')})" for order, error in lost.items()) + ".")
    return said


STUDIES = (Study("reduce/error", "the error of a sum of floats, by the order of its additions and what is added", measure,
                 ("order", "numbers", "terms", "error_rms_units", "error_max_units", "relative_error"), draw, conclude),)
