"""A picture of one network: DCs on their map, links, and how the services fare; scaled down for smooth edges."""

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hotloop.envs.sfc_tables import CPU, LENGTH, LINK_KBPS, SERVICES, SQUARE_KM, VNFS

if TYPE_CHECKING:
    from hotloop.envs.sfc_state import SfcState

MAP, PANEL, CAPTION, MARGIN, SCALE = 460, 250, 46, 14, 2
SIZE = (MARGIN * 3 + MAP + PANEL, CAPTION + MAP + MARGIN)
PAPER, FIELD, GRID, EDGE = (28, 33, 41), (36, 43, 53), (44, 52, 63), (72, 84, 100)
TEXT, FAINT, GOOD, BAD, AGENT = (236, 240, 244), (138, 150, 165), (126, 200, 110), (235, 87, 87), (255, 214, 102)
COLOURS = ((110, 168, 254), (244, 132, 95), (141, 224, 122), (199, 146, 234), (255, 203, 107), (86, 204, 200))
"""Of the six functions."""
Colour = tuple[int, int, int]
Point = tuple[float, float]
NAMES = {"cloud_gaming": "cloud gaming", "ar": "AR", "voip": "VoIP", "miot": "MIoT", "industry": "industry 4.0"}
BOX_WIDTH, BOX_HEIGHT = 78, 50


class _Dc(NamedTuple):
    at: Point
    cpu: int
    installed: np.ndarray  # (V,)
    busy: np.ndarray  # (V,)


def draw(state: "SfcState", steps: int) -> Image.Image:
    """Map on the left, with each DC's CPU and functions; services, functions and time on the right and above."""
    image = Image.new("RGB", (SIZE[0] * SCALE, SIZE[1] * SCALE), PAPER)
    pen = ImageDraw.Draw(image)
    _field(pen)
    dcs = _dcs(state)
    _links(pen, state, [dc.at for dc in dcs])
    for i, dc in enumerate(dcs):
        _dc(pen, i, dc, is_visited=i == int(state.dc))
    _caption(pen, state, steps)
    _services(pen, state)
    _legend(pen, dcs)
    return image.reduce(SCALE)


def _dcs(state: "SfcState") -> list[_Dc]:
    count = int((state.cpu > 0).sum())
    points = _apart([tuple(map(float, place)) for place in state.place[:count]])
    where, busy = np.asarray(state.requests.where), np.asarray(state.requests.busy)
    return [
        _Dc(point, int(state.cpu[i]), np.asarray(state.installed[i]), ((where == i) & busy).sum((1, 2)))
        for i, point in enumerate(points)
    ]


def _apart(places: list[tuple[float, ...]]) -> list[Point]:
    """Where the boxes of DCs go: at their places, but pushed apart until none covers another."""
    inner = np.array([MAP - BOX_WIDTH - 16, MAP - BOX_HEIGHT - 16], float)
    low = np.array([MARGIN + BOX_WIDTH / 2 + 8, CAPTION + BOX_HEIGHT / 2 + 8])
    points = low + np.array(places) / SQUARE_KM * inner
    need = np.array([BOX_WIDTH + 10.0, BOX_HEIGHT + 10.0])
    for _ in range(200):
        moved = False
        for i in range(len(points)):
            for j in range(i):
                gap = points[i] - points[j]
                overlap = need - np.abs(gap)
                if (overlap > 0).all():
                    axis = int(np.argmin(overlap / need))
                    push = overlap[axis] / 2 * (1 if gap[axis] >= 0 else -1)
                    points[i, axis] += push
                    points[j, axis] -= push
                    moved = True
        points = np.clip(points, low, low + inner)
        if not moved:
            break
    return [(float(x), float(y)) for x, y in points]


def _field(pen: ImageDraw.ImageDraw) -> None:
    left, top = MARGIN, CAPTION
    _box(pen, (left, top, left + MAP, top + MAP), FIELD, radius=8)
    for i in range(1, 10):
        at = MAP * i / 10
        pen.line(_scaled(left + at, top, left + at, top + MAP), fill=GRID, width=1)
        pen.line(_scaled(left, top + at, left + MAP, top + at), fill=GRID, width=1)


def _links(pen: ImageDraw.ImageDraw, state: "SfcState", points: list[Point]) -> None:
    used = _used(state, len(points))
    for i in range(len(points)):
        for j in range(i):
            share = min(used[i, j] / LINK_KBPS, 1.0)
            colour = _blend(COLOURS[0], BAD, share) if share else GRID
            line = _scaled(*points[i], *points[j])
            pen.line(line, fill=colour, width=round((1 + 5 * share) * SCALE))
    for i in range(len(points)):
        for j in range(i):
            middle = (points[i][0] + points[j][0]) / 2, (points[i][1] + points[j][1]) / 2
            if used[i, j] > 0 and not any(_is_covered(middle, point) for point in points):
                _label(pen, middle, f"{used[i, j] / 1000:.0f} Mbps")


def _is_covered(label: Point, dc: Point) -> bool:
    """Whether a DC's box would hide a part of a label."""
    return abs(label[0] - dc[0]) < BOX_WIDTH / 2 + 30 and abs(label[1] - dc[1]) < BOX_HEIGHT / 2 + 7


def _used(state: "SfcState", count: int) -> np.ndarray:
    """kbps reserved between each two DCs."""
    r, used = state.requests, np.zeros((count, count), np.int64)
    for s, k in zip(*np.nonzero(r.live), strict=True):
        hops = [(int(r.came_from[s, k]), int(r.at[s, k]))]
        if r.stage[s, k] == LENGTH[s]:
            hops.append((int(r.at[s, k]), int(r.destination[s, k])))
        for one, other in hops:
            if one != other:
                used[one, other] += int(r.kbps[s, k])
                used[other, one] += int(r.kbps[s, k])
    return used


def _dc(pen: ImageDraw.ImageDraw, number: int, dc: _Dc, is_visited: bool) -> None:
    """A box: name and CPU, a bar of the CPU taken by each function, below it one dot per instance, filled if busy."""
    x, y = dc.at
    left, top, right, bottom = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2, x + BOX_WIDTH / 2, y + BOX_HEIGHT / 2
    _box(pen, (left, top, right, bottom), PAPER, radius=6, outline=AGENT if is_visited else EDGE)
    pen.text(_point(left + 6, top + 10), f"DC {number}", font=_font(11), fill=TEXT, anchor="lm")
    taken = int((dc.installed * CPU).sum())
    pen.text(_point(right - 6, top + 10), f"{taken}/{dc.cpu}", font=_font(10), fill=FAINT, anchor="rm")
    at, wide = left + 6, BOX_WIDTH - 12
    pen.rectangle(_scaled(at, top + 19, at + wide, top + 25), fill=GRID)
    for vnf, count in enumerate(dc.installed):
        share = wide * int(count) * int(CPU[vnf]) / dc.cpu
        if share:
            pen.rectangle(_scaled(at, top + 19, at + share, top + 25), fill=COLOURS[vnf])
            at += share
    dots = [(vnf, i < dc.busy[vnf]) for vnf, count in enumerate(dc.installed) for i in range(int(count))]
    per_row = 11
    for i, (vnf, is_busy) in enumerate(dots[: 2 * per_row]):
        centre = (left + 9 + 6 * (i % per_row), top + 33 + 8 * (i // per_row))
        _dot(pen, centre, 2.4, COLOURS[vnf], is_filled=is_busy)


def _caption(pen: ImageDraw.ImageDraw, state: "SfcState", steps: int) -> None:
    middle, right = CAPTION / 2, SIZE[0] - MARGIN
    pen.text(_point(MARGIN, middle), f"{int(state.now)} ms", font=_font(22), fill=TEXT, anchor="lm")
    bar = MARGIN + 100, right - 190
    pen.rectangle(_scaled(bar[0], middle - 2, bar[1], middle + 2), fill=GRID)
    now = bar[0] + (bar[1] - bar[0]) * min(int(state.now) / steps, 1.0)
    pen.rectangle(_scaled(bar[0], middle - 2, now, middle + 2), fill=AGENT)
    satisfied, arrived = int(np.sum(state.satisfied)), int(np.sum(state.arrived))
    text = f"{satisfied} of {arrived} requests satisfied"
    pen.text(_point(right, middle), text, font=_font(13), fill=FAINT, anchor="rm")


def _services(pen: ImageDraw.ImageDraw, state: "SfcState") -> None:
    """A bar of each service: satisfied, pending and dropped shares of what has arrived."""
    left, top, right = MARGIN * 2 + MAP, CAPTION, SIZE[0] - MARGIN
    r = state.requests
    pending = (np.asarray(r.live) & (np.asarray(r.stage) < LENGTH[:, None])).sum(1)
    for i, service in enumerate(SERVICES):
        y, arrived = top + 44 * i, max(int(state.arrived[i]), 1)
        satisfied, waiting = int(state.satisfied[i]), int(pending[i])
        name = NAMES.get(service.name, service.name)
        pen.text(_point(left, y + 8), name, font=_font(13), fill=TEXT, anchor="lm")
        share = f"{100 * satisfied / arrived:.0f} %"
        pen.text(_point(right, y + 8), share, font=_font(13), fill=GOOD, anchor="rm")
        at = float(left)
        for count, colour in ((satisfied, GOOD), (waiting, EDGE), (arrived - satisfied - waiting, BAD)):
            wide = (right - left) * count / arrived
            if wide > 0:
                pen.rectangle(_scaled(at, y + 20, at + wide, y + 28), fill=colour)
                at += wide
    y = top + 44 * len(SERVICES)
    for j, (name, colour) in enumerate((("satisfied", GOOD), ("pending", EDGE), ("dropped", BAD))):
        x = left + 86 * j
        pen.rectangle(_scaled(x, y + 1, x + 9, y + 10), fill=colour)
        pen.text(_point(x + 14, y + 6), name, font=_font(11), fill=FAINT, anchor="lm")


def _legend(pen: ImageDraw.ImageDraw, dcs: list[_Dc]) -> None:
    """Each function's colour, and how many of its instances are busy, of those installed."""
    left, top, right = MARGIN * 2 + MAP, CAPTION + 44 * len(SERVICES) + 32, SIZE[0] - MARGIN
    pen.text(_point(left, top + 6), "functions", font=_font(13), fill=TEXT, anchor="lm")
    pen.text(_point(right, top + 6), "busy / installed", font=_font(11), fill=FAINT, anchor="rm")
    for i, vnf in enumerate(VNFS):
        y = top + 28 + 21 * i
        busy, installed = sum(int(dc.busy[i]) for dc in dcs), sum(int(dc.installed[i]) for dc in dcs)
        _dot(pen, (left + 5, y), 5, COLOURS[i], is_filled=True)
        pen.text(_point(left + 18, y), vnf.name, font=_font(12), fill=TEXT, anchor="lm")
        pen.text(_point(right, y), f"{busy} / {installed}", font=_font(12), fill=FAINT, anchor="rm")


def _label(pen: ImageDraw.ImageDraw, at: Point, text: str) -> None:
    half = 3.2 * len(text)
    _box(pen, (at[0] - half, at[1] - 7, at[0] + half, at[1] + 7), FIELD, radius=4)
    pen.text(_point(*at), text, font=_font(10), fill=TEXT, anchor="mm")


def _box(
    pen: ImageDraw.ImageDraw,
    box: tuple[float, float, float, float],
    fill: Colour,
    radius: int,
    outline: Colour | None = None,
) -> None:
    pen.rounded_rectangle(_scaled(*box), radius * SCALE, fill=fill, outline=outline, width=2 * SCALE)


def _dot(pen: ImageDraw.ImageDraw, at: Point, radius: float, colour: Colour, is_filled: bool) -> None:
    box = _scaled(at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius)
    pen.ellipse(box, fill=colour if is_filled else None, outline=colour, width=SCALE)


def _point(x: float, y: float) -> Point:
    return SCALE * x, SCALE * y


def _scaled(*numbers: float) -> list[float]:
    return [SCALE * number for number in numbers]


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * SCALE)


def _blend(one: Colour, other: Colour, share: float) -> Colour:
    r, g, b = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return r, g, b
