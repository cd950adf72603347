"""A picture of one Treasure state: drawn at twice its size and scaled down so that edges are smooth."""

import math
from colorsys import hsv_to_rgb
from functools import cache

from PIL import Image, ImageDraw, ImageFont

BOARD, MARGIN, PANEL, SCALE = 400, 12, 150, 2
PAPER, TEXT, FAINT, TRACK = (28, 33, 41), (236, 240, 244), (138, 150, 165), (49, 58, 70)
SAND, DARKER_SAND, GRAIN = (222, 199, 150), (214, 190, 140), (196, 170, 120)
BRICK, JOINT, LIT = (104, 96, 98), (72, 66, 70), (122, 113, 114)
GEM, GEM_LIGHT, GEM_DARK, SPARK = (56, 176, 222), (170, 232, 250), (24, 112, 170), (255, 255, 255)
GOOD, BAD = (126, 190, 84), (150, 84, 160)
BLACK, WHITE = (24, 26, 30), (250, 250, 250)
PALETTE = ((228, 74, 74), (70, 104, 214), (44, 150, 90), (238, 146, 40), (150, 76, 190), (212, 70, 150), (90, 90, 100))
MOST_ROWS = 10
"""Agents in the list at the side; of more, those with the highest scores."""
Cell = tuple[int, int]
Point = tuple[float, float]
Colour = tuple[int, int, int]


def draw(
    *,
    grid: int,
    radius: int,
    kinds: list[tuple[str, float]],
    things: dict[Cell, int],
    agents: list[Cell],
    found: list[list[int]],
    t: int,
    turns: int,
) -> Image.Image:
    """The field with what lies and walks on it, what each agent sees as a faint frame, and scores at the side."""
    image = _with_windows(_background(grid), grid, radius, agents)
    pen = ImageDraw.Draw(image)
    size = _cell_size(grid)
    for cell, number in things.items():
        at = _centre(cell, grid)
        if number == 1:
            pen.ellipse(
                (at[0] - size * 0.26, at[1] + size * 0.21, at[0] + size * 0.26, at[1] + size * 0.35), fill=GRAIN
            )
            _gem(pen, at, size, twinkle=(cell[0] * 7 + cell[1] * 5 + t) % 5)
        else:
            _other_thing(pen, at, size, *kinds[number - 1])
    for number, cell in enumerate(agents):
        _agent(pen, _centre(cell, grid), size, number)
    _scores(pen, kinds, found, t, turns)
    return image.reduce(SCALE)


def colour_of(number: int) -> Colour:
    """The colour of an agent; beyond the palette, hues as far apart as they come."""
    if number < len(PALETTE):
        return PALETTE[number]
    r, g, b = hsv_to_rgb(number * 0.618 % 1.0, 0.7, 0.8)
    return round(255 * r), round(255 * g), round(255 * b)


def _cell_size(grid: int) -> float:
    return BOARD * SCALE / grid


def _centre(cell: Cell, grid: int) -> Point:
    size = _cell_size(grid)
    return MARGIN * SCALE + (cell[0] + 0.5) * size, MARGIN * SCALE + (cell[1] + 0.5) * size


def _box(cell: Cell, grid: int, share: float = 0.5) -> tuple[float, float, float, float]:
    (x, y), half = _centre(cell, grid), _cell_size(grid) * share
    return x - half, y - half, x + half, y + half


@cache
def _background(grid: int) -> Image.Image:
    """Sand within walls of brick: the same in every frame of a film."""
    image = Image.new("RGB", ((BOARD + PANEL + 3 * MARGIN) * SCALE, (BOARD + 2 * MARGIN) * SCALE), PAPER)
    pen, size = ImageDraw.Draw(image), _cell_size(grid)
    for x in range(grid):
        for y in range(grid):
            if 0 < x < grid - 1 and 0 < y < grid - 1:
                _sand(pen, (x, y), grid)
            else:
                _bricks(pen, _box((x, y), grid), size)
    return image


def _sand(pen: ImageDraw.ImageDraw, cell: Cell, grid: int) -> None:
    pen.rectangle(_box(cell, grid), fill=SAND if sum(cell) % 2 else DARKER_SAND)
    (x, y), size = _centre(cell, grid), _cell_size(grid)
    for i in range(3):
        turn = cell[0] * 2.4 + cell[1] * 4.1 + i * 2.1
        _dot(pen, (x + size * 0.34 * math.sin(turn), y + size * 0.34 * math.cos(1.7 * turn)), size * 0.022, GRAIN)


def _bricks(pen: ImageDraw.ImageDraw, box: tuple[float, float, float, float], size: float) -> None:
    left, top, right, bottom = box
    pen.rectangle(box, fill=BRICK)
    line = max(2, round(size * 0.045))
    for i in range(3):
        y = top + i * size / 3
        pen.line((left, y, right, y), fill=JOINT, width=line)
        pen.line((left, y + line, right, y + line), fill=LIT, width=max(1, line // 2))
        x = left + size * (0.25 if i % 2 else 0.75)
        pen.line((x, y, x, min(bottom, y + size / 3)), fill=JOINT, width=line)


def _with_windows(image: Image.Image, grid: int, radius: int, agents: list[Cell]) -> Image.Image:
    """What each agent sees: a tint of its colour, and a thin frame."""
    half = (radius + 0.5) * _cell_size(grid)
    low, high = MARGIN * SCALE, (MARGIN + BOARD) * SCALE - 1
    whole = image.convert("RGBA")
    for number, cell in enumerate(agents):
        x, y = _centre(cell, grid)
        inset = 2 * SCALE + number % 3 * SCALE  # so that frames of neighbours do not hide each other
        box = [max(low, x - half), max(low, y - half), min(high, x + half), min(high, y + half)]
        box = [box[0] + inset, box[1] + inset, box[2] - inset, box[3] - inset]
        layer = Image.new("RGBA", image.size, (0, 0, 0, 0))
        ImageDraw.Draw(layer).rounded_rectangle(
            box, radius=6 * SCALE, fill=(*colour_of(number), 16), outline=(*colour_of(number), 150), width=SCALE
        )
        whole = Image.alpha_composite(whole, layer)
    return whole.convert("RGB")


def _gem(pen: ImageDraw.ImageDraw, at: Point, size: float, twinkle: int) -> None:
    """A cut stone; a spark on it that wanders from turn to turn."""
    x, y = at
    wide, high, crown = size * 0.32, size * 0.3, size * 0.1
    top, girdle, tip = y - high, y - crown, y + high
    table = wide * 0.55
    pen.polygon([(x - table, top), (x + table, top), (x + wide, girdle), (x, tip), (x - wide, girdle)], fill=GEM)
    pen.polygon(
        [(x - table, top), (x + table, top), (x + wide * 0.4, girdle), (x - wide * 0.4, girdle)], fill=GEM_LIGHT
    )
    pen.polygon([(x + wide * 0.4, girdle), (x + wide, girdle), (x, tip)], fill=GEM_DARK)
    outline = [(x - table, top), (x + table, top), (x + wide, girdle), (x, tip), (x - wide, girdle), (x - table, top)]
    pen.line(outline, fill=GEM_DARK, width=max(1, round(size * 0.03)), joint="curve")
    spots = ((-0.5, -0.75), (0.55, -0.6), (0.0, -0.1), (-0.75, -0.1), (0.8, -0.9))
    _spark(pen, (x + wide * spots[twinkle][0], y + high * spots[twinkle][1]), size * (0.16 if twinkle % 2 else 0.11))


def _spark(pen: ImageDraw.ImageDraw, at: Point, reach: float) -> None:
    (x, y), thin = at, reach * 0.22
    pen.polygon([(x, y - reach), (x + thin, y), (x, y + reach), (x - thin, y)], fill=SPARK)
    pen.polygon([(x - reach, y), (x, y + thin), (x + reach, y), (x, y - thin)], fill=SPARK)


def _other_thing(pen: ImageDraw.ImageDraw, at: Point, size: float, name: str, value: float) -> None:
    """A disc with the thing's first letter: green if it is worth something, purple if it costs."""
    _dot(pen, at, size * 0.3, BLACK)
    _dot(pen, at, size * 0.27, GOOD if value >= 0 else BAD)
    pen.text(at, name[0].upper(), font=_font(size * 0.34), fill=WHITE, anchor="mm")


def _agent(pen: ImageDraw.ImageDraw, at: Point, size: float, number: int) -> None:
    x, y = at
    pen.ellipse((x - size * 0.3, y + size * 0.26, x + size * 0.3, y + size * 0.44), fill=GRAIN)
    _dot(pen, at, size * 0.4, BLACK)
    _dot(pen, at, size * 0.36, colour_of(number))
    _dot(pen, (x - size * 0.17, y - size * 0.2), size * 0.055, WHITE)
    pen.text((x, y + size * 0.02), str(number), font=_font(size * 0.42), fill=WHITE, anchor="mm")


def _scores(
    pen: ImageDraw.ImageDraw, kinds: list[tuple[str, float]], found: list[list[int]], t: int, turns: int
) -> None:
    """Turn and progress of the epoch; per agent what it has found, with a bar; the sum of all."""
    left, right = (BOARD + 2 * MARGIN) * SCALE, (BOARD + 2 * MARGIN + PANEL) * SCALE
    top = MARGIN * SCALE
    pen.text((left, top), f"turn {t}", font=_font(20 * SCALE), fill=TEXT, anchor="lt")
    pen.text((right, top + 5 * SCALE), f"of {turns}", font=_font(13 * SCALE), fill=FAINT, anchor="rt")
    bar = top + 28 * SCALE
    pen.rectangle((left, bar, right, bar + 4 * SCALE), fill=TRACK)
    pen.rectangle((left, bar, left + (right - left) * min(1.0, t / turns), bar + 4 * SCALE), fill=FAINT)
    shown = sorted(range(len(found)), key=lambda number: -found[number][0])[:MOST_ROWS]
    most = max(10, *(row[0] for row in found))
    for place, number in enumerate(sorted(shown)):
        y = top + (58 + 29 * place) * SCALE
        _dot(pen, (left + 9 * SCALE, y), 9 * SCALE, colour_of(number))
        pen.text((left + 9 * SCALE, y), str(number), font=_font(11 * SCALE), fill=WHITE, anchor="mm")
        start, end = left + 26 * SCALE, right - 30 * SCALE
        pen.rounded_rectangle((start, y - 5 * SCALE, end, y + 5 * SCALE), radius=4 * SCALE, fill=TRACK)
        if found[number][0]:
            length = max(8 * SCALE, (end - start) * found[number][0] / most)
            pen.rounded_rectangle(
                (start, y - 5 * SCALE, start + length, y + 5 * SCALE), radius=4 * SCALE, fill=colour_of(number)
            )
        pen.text((right, y), str(found[number][0]), font=_font(16 * SCALE), fill=TEXT, anchor="rm")
        rest = "  ".join(f"{name} {count}" for (name, _), count in zip(kinds[1:], found[number][1:], strict=True))
        pen.text((start, y + 8 * SCALE), rest, font=_font(8 * SCALE), fill=FAINT, anchor="lt")
    bottom = (MARGIN + BOARD) * SCALE
    total = sum(row[0] for row in found)
    _gem(pen, (left + 13 * SCALE, bottom - 16 * SCALE), 36 * SCALE, twinkle=1)
    pen.text((left + 36 * SCALE, bottom - 16 * SCALE), f"{total}", font=_font(24 * SCALE), fill=TEXT, anchor="lm")
    pen.text((right, bottom - 13 * SCALE), "found by all", font=_font(11 * SCALE), fill=FAINT, anchor="rm")


@cache
def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _dot(pen: ImageDraw.ImageDraw, at: Point, radius: float, colour: Colour) -> None:
    pen.ellipse((at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius), fill=colour)
