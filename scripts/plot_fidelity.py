#!/usr/bin/env python3
"""Draws what scripts/fidelity.py measured: KL divergence against bytes, a light picture and a dark one.

usage: plot_fidelity.py FIGURES.json TEXT OUT_STEM      writes OUT_STEM-light.svg and OUT_STEM-dark.svg
"""

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 78, 20, 46, 52
THEMES = {
    "light": {"paper": "#ffffff", "ink": "#1f2328", "faint": "#d0d7de", "htc": "#0550ae", "peer": "#bc4c00"},
    "dark": {"paper": "#0d1117", "ink": "#e6edf3", "faint": "#30363d", "htc": "#58a6ff", "peer": "#ffa657"},
}


class Scale:
    """Bytes to the right, divergence upwards by its logarithm."""

    def __init__(self, points: list[tuple[float, float, float]]):
        sizes, losses = [p[0] for p in points], [p[1] for p in points]
        self.sizes = (0.96 * min(sizes), 1.02 * max(sizes))
        self.losses = (math.log10(0.8 * min(losses)), math.log10(1.35 * max(losses)))

    def x(self, size: float) -> float:
        part = (size - self.sizes[0]) / (self.sizes[1] - self.sizes[0])
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, loss: float) -> float:
        part = (math.log10(loss) - self.losses[0]) / (self.losses[1] - self.losses[0])
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)


def hull(points: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """The points that no smaller one beats."""
    best, least = [], math.inf
    for point in sorted(points):
        if point[1] < least:
            best.append(point)
            least = point[1]
    return best


def axes(scale: Scale, theme: dict, text: str) -> list[str]:
    """Lines, figures and titles."""
    out = []
    for power in range(math.floor(scale.losses[0]), math.ceil(scale.losses[1]) + 1):
        for digit in (1, 2, 5):
            loss = digit * 10.0**power
            if scale.losses[0] <= math.log10(loss) <= scale.losses[1]:
                y = scale.y(loss)
                out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{theme["faint"]}"/>')
                out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss:g}</text>')
    megabyte = math.ceil(scale.sizes[0] / 1e6 * 2) / 2
    while megabyte * 1e6 <= scale.sizes[1]:
        x = scale.x(megabyte * 1e6)
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="{theme["faint"]}"/>')
        if megabyte == int(megabyte):
            out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{megabyte:g}</text>')
        megabyte += 0.5
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">megabytes of the whole file</text>')
    turned = f"translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)"
    out.append(f'<text transform="{turned}" text-anchor="middle">KL divergence from the source, nats per token</text>')
    out.append(f'<text x="{LEFT}" y="22" font-weight="600">{text}: lower is closer to the model</text>')
    return out


def series(scale: Scale, points: list, colour: str, label: str, names: list[str] | None) -> list[str]:
    """A line along the best points, all points with their intervals, and the name at the line's beginning."""
    line = " ".join(f"{scale.x(p[0]):.1f},{scale.y(p[1]):.1f}" for p in hull(points))
    out = [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for i, (size, loss, error) in enumerate(points):
        x, y = scale.x(size), scale.y(loss)
        low, high = (scale.y(max(loss + sign * 1.96 * error, 1e-9)) for sign in (-1, 1))
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>')
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"><title>{size:,.0f} bytes: {loss:.5f}</title></circle>')
        if names:
            out.append(f'<text x="{x + 6:.1f}" y="{y - 6:.1f}" font-size="10" fill="{colour}">{names[i]}</text>')
    size, loss, _ = min(points)
    if not names:
        out.append(f'<text x="{scale.x(size) + 8:.1f}" y="{scale.y(loss) + 16:.1f}" font-weight="600" fill="{colour}">{label}</text>')
    return out


def picture(figures: dict, text: str, theme: dict) -> str:
    """The whole picture."""
    groups: dict[str, list] = {"htc": [], "llama.cpp": []}
    names = []
    for row in figures["rows"]:
        found = row["texts"][text]
        kind, _, name = row["name"].partition(" ")
        groups[kind].append((float(row["bytes"]), found["kl"], found["kl_stderr"]))
        if kind == "llama.cpp":
            names.append(name)
    scale = Scale([point for points in groups.values() for point in points])
    body = axes(scale, theme, f"{figures['model'].removesuffix('.gguf')} on {text}")
    if groups["llama.cpp"]:
        body += series(scale, groups["llama.cpp"], theme["peer"], "llama.cpp", names)
        legend = f'<text x="{WIDTH - RIGHT}" y="22" text-anchor="end" fill="{theme["peer"]}">llama.cpp, importance matrix of the same text</text>'
        body.append(legend)
    body += series(scale, groups["htc"], theme["htc"], "htc", None)
    style = f'font-family="system-ui,sans-serif" font-size="12" fill="{theme["ink"]}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" {style}>'
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{theme["paper"]}"/>'
    return "\n".join([head, paper, *body, "</svg>", ""])


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__.strip().splitlines()[-1])
    figures = json.loads(Path(sys.argv[1]).read_text())
    for name, theme in THEMES.items():
        Path(f"{sys.argv[3]}-{name}.svg").write_text(picture(figures, sys.argv[2], theme))


if __name__ == "__main__":
    main()
