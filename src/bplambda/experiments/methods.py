"""The columns of Table 1, and how each looks in every figure."""

from typing import Any

LAMBDAS = (0.0, 0.5, 1.0)
COLOURS = {0.0: "tab:orange", 0.5: "tab:purple", 1.0: "tab:green"}
N_COLOURS = {1: "tab:gray", 2: "tab:cyan", 3: "tab:blue", 4: "tab:olive", 5: "tab:red"}

METHODS: dict[str, dict[str, Any]] = {
    **{f"bptt{n}": {"rule": "truncated", "n": n} for n in (2, 3, 4, 5)},
    **{f"sg{n}": {"rule": "nstep", "n": n, "scale": 0.1} for n in (2, 3, 4, 5)},  # scaled as the paper says
    "none": {"rule": "truncated", "n": 1},
    **{f"bp{lam:g}": {"rule": "bplambda", "lam": lam} for lam in LAMBDAS},
}
TITLES = {
    **{f"bptt{n}": f"BPTT n={n}" for n in (2, 3, 4, 5)},
    **{f"sg{n}": f"SG n={n}" for n in (2, 3, 4, 5)},
    "none": "n=1",
    **{f"bp{lam:g}": f"BP({lam:g})" for lam in LAMBDAS},
}
TRUNCATED = ["none", *(m for m in METHODS if m.startswith("bptt"))]
SG = [m for m in METHODS if m.startswith("sg")]
BP = [f"bp{lam:g}" for lam in LAMBDAS]


def style(method: str) -> dict[str, Any]:
    """The same look for a method in every figure; truncated BPTT is dashed."""
    settings = METHODS[method]
    colour = COLOURS[settings["lam"]] if settings["rule"] == "bplambda" else N_COLOURS[settings["n"]]
    return {"color": colour, "linestyle": "--" if settings["rule"] == "truncated" else "-", "label": TITLES[method]}
