"""Study of part 8: which step of softmax, RMSNorm, LayerNorm and argmax fails on which input, beside NumPy in float32."""

from cudalab.study import Study

COLUMNS, FEW = 4096, 136  # of a row: on a device, on the emulator
ROWS = 4


def normal(rng, shape):
    return rng.standard_normal(shape)


def around(centre, spread=1.0):
    return lambda rng, shape: centre + spread * rng.standard_normal(shape)


def with_value(value):
    """Normal numbers, and one of them something else."""
    def make(rng, shape):
        x = rng.standard_normal(shape)
        x[:, shape[1] // 3] = value
        return x
    return make


def all_of(value):
    import math
    return lambda rng, shape: rng.standard_normal(shape) * 0 + value if math.isfinite(value) else rng.choice([value], shape)


def huge(rng, shape):
    return rng.uniform(-3e38, 3e38, shape)


INPUTS = {
    "normal": normal, "around 100": around(100), "around -200": around(-200), "around 1e4": around(1e4),
    "around 1e4 by 0.01": around(1e4, 0.01), "around 1e6": around(1e6), "deviation 1e19": around(0, 1e19), "near overflow": huge,
    "deviation 1e-30": around(0, 1e-30), "one infinity": with_value(float("inf")), "one -infinity": with_value(float("-inf")),
    "all -infinity": all_of(float("-inf")), "one NaN": with_value(float("nan")), "all equal": all_of(2.5)}
OPS = ("softmax", "rmsnorm", "layernorm", "argmax")


def verdict_of(op, problem, inputs, outputs) -> dict:
    """right, or how it is wrong; its worst error over the element's scale."""
    from cudalab import check
    from cudalab.dtypes import finite
    verdict = check.compare(op, problem, inputs, outputs, exact=False)
    name, = op.outputs
    what = "right" if verdict else "not finite" if not finite(outputs[name], op.tensors(problem)[name].dtype) else "wrong"
    return dict(result=what, error=verdict.error if verdict.error == verdict.error and verdict.error != float("inf") else None)


def in_float32(op, problem, inputs) -> dict:
    """The formula as NumPy computes it in float32."""
    import numpy as np
    name, = op.outputs
    with np.errstate(all="ignore"):
        return {name: op.reference(**inputs).astype(np.int64 if op.name == "argmax" else np.float32)}


def measure(place, progress):
    import numpy as np

    from cudalab import check, registry
    columns = FEW if place.name == "emulator" else COLUMNS
    for number, name in enumerate(OPS):
        op = registry.ops()[name]
        problem, together = (op.problem(dict(M=rows, N=columns), "f32") for rows in (ROWS, ROWS * len(INPUTS)))
        rng = check.generator(0)
        x = np.concatenate([make(rng, (ROWS, columns)).astype(np.float32) for make in INPUTS.values()])
        inputs = check.draw(op, together, "normal", rng) | dict(x=x)
        found = {f"{name}, NumPy float32": in_float32(op, together, inputs)}
        steps = [step for step in op.steps if step.min_sm <= place.device.sm and not step.refuses(together)]
        for i, step in enumerate(steps):
            progress(number * len(steps) + i, len(OPS) * len(steps), "softmax/stability")
            found[step.path] = place.run(step.plan(together), inputs)
        for i, kind in enumerate(INPUTS):
            own = slice(i * ROWS, (i + 1) * ROWS)
            for step, outputs in found.items():
                verdict = verdict_of(op, problem, inputs | dict(x=x[own]), {key: value[own] for key, value in outputs.items()})
                yield dict(step=step, input=kind, **verdict)


def draw(axes, rows):
    """A table of squares: light where a step is right on an input, dark where it is not."""
    steps, kinds = (list(dict.fromkeys(row[name] for row in rows)) for name in ("step", "input"))
    shade = {"right": 0.1, "wrong": 0.7, "not finite": 1.0}
    grid = [[0.0] * len(kinds) for _ in steps]
    for row in rows:
        grid[steps.index(row["step"])][kinds.index(row["input"])] = shade[row["result"]]
    axes.imshow(grid, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(kinds)), kinds, rotation=40, ha="right", fontsize=6)
    axes.set_yticks(range(len(steps)), steps, fontsize=5)
    axes.set_xlabel("input (light: right; dark: wrong; darkest: NaN or infinity where there is none)")
    axes.set_ylabel("step")


def conclude(rows):
    said, always = [], None
    for name in OPS:
        mine = [row for row in rows if row["step"].startswith(name)]
        steps = list(dict.fromkeys(row["step"] for row in mine))
        fails = {step: [row["input"] for row in mine if row["step"] == step and row["result"] != "right"] for step in steps}
        always = [kind for kind in dict.fromkeys(row["input"] for row in mine) if all(kind in fails[step] for step in steps)]
        if always:
            said.append(f"{name}: on inputs {', '.join(always)} float32 itself fails, in NumPy as in every step.")
        for step, kinds in fails.items():
            own = [kind for kind in kinds if kind not in always]
            if own:
                said.append(f"{step} fails on inputs {', '.join(own)}.")
        if not any(fails.values()):
            said.append(f"{name}: every step is right on every input.")
    return said


STUDIES = (Study("softmax/stability", "which step of softmax, the norms and argmax fails on which input", measure,
                 ("step", "input", "result", "error"), draw, conclude),)
