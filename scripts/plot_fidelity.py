#!/usr/bin/env python3
"""Draws what scripts/fidelity.py measured: KL divergence against bytes, a light picture and a dark one.

    python3 scripts/plot_fidelity.py --text wikitext2.test.raw.txt --title TITLE -o OUT_STEM FIGURES.json...

writes OUT_STEM-light.svg and OUT_STEM-dark.svg. The rows of all files are drawn together: a series for llama.cpp's types, of which
those are named that no smaller one beats, and one for each set of options of htc. Letters are large, so that
they can be read where a page is as wide as a telephone. Python's standard library alone.
"""

import argparse
import json
import math
from pathlib import Path

WIDTH, HEIGHT = 640, 470
LEFT, RIGHT, TOP, BOTTOM = 74, 14, 50, 58
LETTER, SMALL = 16, 12.5
WIDE = 0.56
"""Width of a letter over its height, about."""
THEMES = {
    "light": {"paper": "#ffffff", "ink": "#1f2328", "faint": "#e1e6eb", "series": ["#bc4c00", "#0550ae", "#1a7f37", "#8250df"]},
    "dark": {"paper": "#0d1117", "ink": "#e6edf3", "faint": "#262c34", "series": ["#ffa657", "#58a6ff", "#56d364", "#bc8cff"]},
}


class Scale:
    """Bytes to the right, divergence upwards by its logarithm."""

    def __init__(self, points):
        sizes, losses = [p["bytes"] for p in points], [p["kl"] for p in points]
        margin = 0.04 * (max(sizes) - min(sizes))
        self.sizes = (min(sizes) - margin, max(sizes) + margin)
        self.losses = (math.log10(0.8 * min(losses)), math.log10(1.3 * max(losses)))

    def x(self, size):
        part = (size - self.sizes[0]) / (self.sizes[1] - self.sizes[0])
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, loss):
        part = (math.log10(loss) - self.losses[0]) / (self.losses[1] - self.losses[0])
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)


class Paper:
    """The parts of a picture, and where there is something already."""

    def __init__(self, theme):
        self.theme = theme
        self.parts = []
        self.taken = []

    def line(self, x1, y1, x2, y2, colour, width=1.0):
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'
        )

    def text(self, x, y, words, colour=None, size=LETTER, anchor="start", more=""):
        colour = colour or self.theme["ink"]
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{more}>{words}</text>'
        )

    def take(self, x1, y1, x2, y2):
        self.taken.append((x1, y1, x2, y2))

    def free(self, x1, y1, x2, y2):
        """Whether nothing is there, and it is within the axes."""
        inside = LEFT < x1 and x2 < WIDTH - RIGHT and TOP < y1 and y2 < HEIGHT - BOTTOM
        return inside and all(x2 < a or c < x1 or y2 < b or d < y1 for a, b, c, d in self.taken)

    def name(self, x, y, words, colour):
        """Writes a point's name beside it where there is room; else it is left to the tooltip."""
        wide, high = len(words) * SMALL * WIDE, SMALL
        for dx, dy in ((8, -5), (8, 14), (-8 - wide, -7), (-8 - wide, 15), (-wide / 2, -11), (-wide / 2, 21), (14, 4)):
            box = (x + dx - 1, y + dy - 0.8 * high - 1, x + dx + wide + 1, y + dy + 0.2 * high + 1)
            if self.free(*box):
                self.take(*box)
                self.text(x + dx, y + dy, words, colour, SMALL)
                return


def hull(points):
    """The points that no smaller one beats."""
    best, least = [], math.inf
    for point in sorted(points, key=lambda p: (p["bytes"], p["kl"])):
        if point["kl"] < least:
            best.append(point)
            least = point["kl"]
    return best


def step(extent):
    """The distance of lines on the axis of bytes: 1, 2 or 5 times a power of ten, at most 9 of them."""
    power = 10.0 ** math.floor(math.log10(extent / 9))
    return next(factor * power for factor in (1, 2, 5, 10) if extent / (factor * power) <= 9)


def axes(paper, scale, title):
    """Lines, figures and titles."""
    faint = paper.theme["faint"]
    for power in range(math.floor(scale.losses[0]), math.ceil(scale.losses[1]) + 1):
        for digit in (1, 2, 5):
            loss = digit * 10.0**power
            if scale.losses[0] <= math.log10(loss) <= scale.losses[1]:
                y = scale.y(loss)
                paper.line(LEFT, y, WIDTH - RIGHT, y, faint)
                paper.text(LEFT - 7, y + 5, f"{loss:.10f}".rstrip("0").removeprefix("0"), anchor="end", size=14)
    apart = step((scale.sizes[1] - scale.sizes[0]) / 1e6)
    megabytes = math.ceil(scale.sizes[0] / 1e6 / apart) * apart
    while megabytes * 1e6 <= scale.sizes[1]:
        x = scale.x(megabytes * 1e6)
        paper.line(x, TOP, x, HEIGHT - BOTTOM, faint)
        paper.text(x, HEIGHT - BOTTOM + 20, f"{megabytes:g}", anchor="middle", size=14)
        megabytes = round(megabytes + apart, 6)
    paper.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "megabytes of the whole file", anchor="middle")
    turned = f' transform="rotate(-90 17 {(TOP + HEIGHT - BOTTOM) / 2:.0f})"'
    paper.text(17, (TOP + HEIGHT - BOTTOM) / 2, "KL divergence, nats per token", anchor="middle", more=turned)
    paper.text(12, 28, title, size=18, more=' font-weight="600"')


def legend(paper, names):
    """The series' names, each with its colour's number, in the upper right corner, where no curve is that falls."""
    wide = 46 + max(len(name) for name in names) * LETTER * WIDE
    left, top = WIDTH - RIGHT - 8 - wide, TOP + 10
    paper.take(left, top, WIDTH - RIGHT, top + 24 * len(names) + 8)
    size = f'width="{wide:.0f}" height="{24 * len(names) + 8}"'
    colours = f'fill="{paper.theme["paper"]}" stroke="{paper.theme["faint"]}"'
    paper.parts.append(f'<rect x="{left:.0f}" y="{top}" {size} rx="4" {colours}/>')
    for i, name in enumerate(names):
        y = top + 21 + 24 * i
        colour = paper.theme["series"][names[name]]
        paper.line(left + 10, y - 5, left + 34, y - 5, colour, 2.5)
        paper.parts.append(marker(left + 22, y - 5, names[name], colour, name))
        paper.text(left + 41, y, name)


def marker(x, y, series, colour, title):
    """A point: a square for llama.cpp, circles for htc."""
    inner = f'fill="{colour}"><title>{title}</title>'
    if series == 0:
        return f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" {inner}</rect>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2" {inner}</circle>'


def series(paper, scale, points, index):
    """A line along the best points, all points with their intervals; returns what is to be named."""
    colour, best = paper.theme["series"][index], hull(points)
    line = " ".join(f"{scale.x(p['bytes']):.1f},{scale.y(p['kl']):.1f}" for p in best)
    paper.parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
    for (a, b) in zip(best, best[1:]):
        # Names keep off the line, too.
        for i in range(17):
            x = scale.x(a["bytes"]) + (scale.x(b["bytes"]) - scale.x(a["bytes"])) * i / 16
            y = scale.y(a["kl"]) + (scale.y(b["kl"]) - scale.y(a["kl"])) * i / 16
            paper.take(x - 2, y - 2, x + 2, y + 2)
    for point in points:
        x, y = scale.x(point["bytes"]), scale.y(point["kl"])
        low, high = (scale.y(max(bound, 0.3 * point["kl"])) for bound in point["kl_interval"])
        paper.line(x, low, x, high, colour, 1.5)
        paper.parts.append(marker(x, y, index, colour, f"{point['name']}: {point['bytes']:,} bytes, KL {point['kl']:.5f}"))
        paper.take(x - 5, y - 5, x + 5, y + 5)
    return best


def groups(rows, text):
    """Points by series, llama.cpp first."""
    found = {"llama.cpp": []}
    for row in rows:
        name = "llama.cpp" if row["name"].startswith("llama.cpp") else row["name"]
        if text in row["texts"]:
            measured = row["texts"][text]
            shown = row["name"].removeprefix("llama.cpp ")
            point = {"name": shown, "bytes": row["bytes"], "kl": measured["kl"], "kl_interval": measured["kl_interval"]}
            found.setdefault(name, []).append(point)
    return {name: points for name, points in found.items() if points}


def picture(rows, text, title, theme):
    """The whole picture."""
    found = groups(rows, text)
    # The first colour, and squares, are llama.cpp's.
    colours = {name: index if "llama.cpp" in found else index + 1 for index, name in enumerate(found)}
    scale = Scale([point for points in found.values() for point in points])
    paper = Paper(theme)
    axes(paper, scale, title)
    legend(paper, {("llama.cpp, imatrix" if name == "llama.cpp" else name): index for name, index in colours.items()})
    best = {name: series(paper, scale, points, colours[name]) for name, points in found.items()}
    for point in best.get("llama.cpp", []):
        paper.name(scale.x(point["bytes"]), scale.y(point["kl"]), point["name"], theme["series"][0])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui,sans-serif">'
    back = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{theme["paper"]}"/>'
    return "\n".join([head, back, *paper.parts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, nargs="+", metavar="FIGURES.json")
    parser.add_argument("--text", required=True, help="the text to draw, as it is named in the figures")
    parser.add_argument("--title", required=True)
    parser.add_argument("-o", "--output", required=True, metavar="OUT_STEM")
    asked = parser.parse_args()
    rows = [row for file in asked.figures for row in json.loads(file.read_text())["rows"]]
    if not groups(rows, asked.text):
        parser.error(f"--text {asked.text}: no figures are of it")
    for name, theme in THEMES.items():
        Path(f"{asked.output}-{name}.svg").write_text(picture(rows, asked.text, asked.title, theme))


if __name__ == "__main__":
    main()
