"""A picture of one CartPole state, drawn at twice its size and scaled down so that edges are smooth."""

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, SCALE = 480, 300, 2
SKY, GROUND, RAIL = (247, 246, 242), (226, 222, 212), (150, 146, 138)
CART, WHEEL, POLE, TIP, AXLE = (46, 74, 98), (28, 40, 52), (214, 118, 62), (232, 150, 96), (240, 238, 232)
TEXT, FAINT = (60, 60, 66), (178, 174, 166)
PIXELS_PER_UNIT = 82 * SCALE
HORIZON = 216 * SCALE


def draw(physics: np.ndarray, t: int, max_steps: int) -> Image.Image:
    """Cart, pole, track limits, a bar of the time survived and the step number."""
    x, _, angle, _ = (float(v) for v in physics)
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), SKY)
    pen = ImageDraw.Draw(image)
    centre = WIDTH * SCALE / 2
    _track(pen, centre)
    _cart_and_pole(pen, centre + x * PIXELS_PER_UNIT, angle)
    _caption(pen, t, max_steps, angle)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def _track(pen: ImageDraw.ImageDraw, centre: float) -> None:
    wide, high = WIDTH * SCALE, HEIGHT * SCALE
    pen.rectangle((0, HORIZON + 14 * SCALE, wide, high), fill=GROUND)
    pen.line((0, HORIZON + 14 * SCALE, wide, HORIZON + 14 * SCALE), fill=RAIL, width=2 * SCALE)
    for unit in (-2.4, 2.4):
        at = centre + unit * PIXELS_PER_UNIT
        pen.line((at, HORIZON - 26 * SCALE, at, HORIZON + 14 * SCALE), fill=FAINT, width=2 * SCALE)


def _cart_and_pole(pen: ImageDraw.ImageDraw, at: float, angle: float) -> None:
    half, top = 34 * SCALE, HORIZON - 20 * SCALE
    pen.ellipse((at - half - 6 * SCALE, HORIZON + 15 * SCALE, at + half + 6 * SCALE, HORIZON + 24 * SCALE), fill=FAINT)
    for wheel in (-20 * SCALE, 20 * SCALE):
        pen.ellipse(
            (at + wheel - 8 * SCALE, HORIZON - 2 * SCALE, at + wheel + 8 * SCALE, HORIZON + 14 * SCALE),
            fill=WHEEL,
        )
    pen.rounded_rectangle((at - half, top, at + half, HORIZON + 5 * SCALE), radius=7 * SCALE, fill=CART)
    length = 1.0 * PIXELS_PER_UNIT * 1.55
    tip = (at + math.sin(angle) * length, top + 4 * SCALE - math.cos(angle) * length)
    pen.line((at, top + 4 * SCALE, *tip), fill=POLE, width=9 * SCALE)
    _dot(pen, tip, 7, TIP)
    _dot(pen, (at, top + 4 * SCALE), 7, POLE)
    _dot(pen, (at, top + 4 * SCALE), 3, AXLE)


def _dot(pen: ImageDraw.ImageDraw, at: tuple[float, float], radius: int, colour: tuple[int, int, int]) -> None:
    r = radius * SCALE
    pen.ellipse((at[0] - r, at[1] - r, at[0] + r, at[1] + r), fill=colour)


def _caption(pen: ImageDraw.ImageDraw, t: int, max_steps: int, angle: float) -> None:
    large, small = ImageFont.load_default(20 * SCALE), ImageFont.load_default(13 * SCALE)
    left, right, baseline = 20 * SCALE, (WIDTH - 20) * SCALE, 256 * SCALE
    pen.text((left, 14 * SCALE), "CartPole", font=large, fill=TEXT)
    pen.text((right, 16 * SCALE), f"{math.degrees(angle):+.1f}°", font=small, fill=TEXT, anchor="ra")
    pen.rounded_rectangle((left, baseline, right, baseline + 8 * SCALE), radius=4 * SCALE, fill=(206, 201, 190))
    done = left + (right - left) * min(t / max_steps, 1.0)
    if done - left > 8 * SCALE:
        pen.rounded_rectangle((left, baseline, done, baseline + 8 * SCALE), radius=4 * SCALE, fill=CART)
    pen.text((left, baseline + 13 * SCALE), f"step {t}", font=small, fill=TEXT)
    pen.text((right, baseline + 13 * SCALE), f"{max_steps}", font=small, fill=RAIL, anchor="ra")
