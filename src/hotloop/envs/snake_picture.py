"""A picture of one Snake state: drawn at twice its size and scaled down so that edges are smooth."""

from functools import cache

from PIL import Image, ImageDraw, ImageFont

BOARD, CAPTION, MARGIN, SCALE = 400, 54, 10, 2
PAPER, LIGHT, DARK, EDGE = (28, 33, 41), (49, 58, 70), (36, 43, 53), (72, 84, 100)
HEAD, TAIL = (141, 224, 122), (33, 110, 104)
APPLE, SHINE, LEAF, STALK = (235, 87, 87), (255, 173, 163), (126, 200, 110), (130, 94, 66)
TEXT, FAINT, WHITE, BLACK = (236, 240, 244), (138, 150, 165), (250, 250, 250), (20, 24, 28)
Cell = tuple[int, int]


def draw(*, grid: int, body: list[Cell], heading: int, food: Cell, score: int, t: int) -> Image.Image:
    """Board, food, and a snake that fades from head to tail; score, length and step above it."""
    image = _background(grid).copy()
    pen = ImageDraw.Draw(image)
    if food not in body:
        _apple(pen, *_centre(food, grid), _cell_size(grid))
    _snake(pen, [_centre(cell, grid) for cell in body], _cell_size(grid))
    _face(pen, _centre(body[0], grid), heading, _cell_size(grid))
    _caption(pen, score, len(body), t)
    return image.reduce(SCALE)


def _cell_size(grid: int) -> float:
    return BOARD * SCALE / grid


def _centre(cell: Cell, grid: int) -> tuple[float, float]:
    size = _cell_size(grid)
    return MARGIN * SCALE + (cell[0] + 0.5) * size, CAPTION * SCALE + (cell[1] + 0.5) * size


@cache
def _background(grid: int) -> Image.Image:
    """A chequered board in a frame: the same in every frame of a film."""
    image = Image.new("RGB", ((BOARD + 2 * MARGIN) * SCALE, (BOARD + CAPTION + MARGIN) * SCALE), PAPER)
    pen = ImageDraw.Draw(image)
    left, top, side = MARGIN * SCALE, CAPTION * SCALE, BOARD * SCALE
    pen.rectangle((left - 4, top - 4, left + side + 3, top + side + 3), fill=EDGE)
    for x in range(grid):
        for y in range(grid):
            (centre_x, centre_y), half = _centre((x, y), grid), _cell_size(grid) / 2
            box = (centre_x - half, centre_y - half, centre_x + half, centre_y + half)
            pen.rectangle(box, fill=LIGHT if (x + y) % 2 else DARK)
    return image


def _snake(pen: ImageDraw.ImageDraw, points: list[tuple[float, float]], size: float) -> None:
    """Thick joints from tail to head, so that the head lies on top; thinner and darker towards the tail."""
    last = max(len(points) - 1, 1)
    for i in reversed(range(len(points))):
        share = i / last
        colour, width = _blend(HEAD, TAIL, share), size * (0.84 - 0.3 * share)
        _dot(pen, points[i], width / 2, colour)
        if i > 0:
            pen.line((*points[i], *points[i - 1]), fill=colour, width=round(width))


def _face(pen: ImageDraw.ImageDraw, at: tuple[float, float], heading: int, size: float) -> None:
    ahead_x, ahead_y = ((0, -1), (1, 0), (0, 1), (-1, 0))[heading]
    for side in (-1, 1):
        eye = (
            at[0] + size * (0.14 * ahead_x - 0.2 * side * ahead_y),
            at[1] + size * (0.14 * ahead_y + 0.2 * side * ahead_x),
        )
        _dot(pen, eye, size * 0.13, WHITE)
        _dot(pen, (eye[0] + size * 0.05 * ahead_x, eye[1] + size * 0.05 * ahead_y), size * 0.07, BLACK)


def _apple(pen: ImageDraw.ImageDraw, x: float, y: float, size: float) -> None:
    pen.line((x, y - size * 0.2, x + size * 0.06, y - size * 0.42), fill=STALK, width=max(1, round(size * 0.08)))
    pen.ellipse((x + size * 0.04, y - size * 0.44, x + size * 0.3, y - size * 0.28), fill=LEAF)
    _dot(pen, (x, y + size * 0.05), size * 0.33, APPLE)
    _dot(pen, (x - size * 0.11, y - size * 0.06), size * 0.07, SHINE)


def _caption(pen: ImageDraw.ImageDraw, score: int, length: int, t: int) -> None:
    large, small = _font(26), _font(14)
    left, right = MARGIN * SCALE, (MARGIN + BOARD) * SCALE
    _dot(pen, (left + 12 * SCALE, 27 * SCALE), 10 * SCALE, APPLE)
    _dot(pen, (left + 9 * SCALE, 24 * SCALE), 2.4 * SCALE, SHINE)
    pen.text((left + 30 * SCALE, 27 * SCALE), f"{score}", font=large, fill=TEXT, anchor="lm")
    pen.text((right, 27 * SCALE), f"length {length}   step {t}", font=small, fill=FAINT, anchor="rm")


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * SCALE)


def _dot(pen: ImageDraw.ImageDraw, at: tuple[float, float], radius: float, colour: tuple[int, int, int]) -> None:
    pen.ellipse((at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius), fill=colour)


def _blend(one: tuple[int, int, int], other: tuple[int, int, int], share: float) -> tuple[int, int, int]:
    r, g, b = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return r, g, b
