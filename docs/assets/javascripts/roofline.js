// The roofline: performance against intensity, both logarithmic, with a point for each kind of step.

import { digits, svg } from "./svg.js";

const WIDTH = 640, HEIGHT = 340;
const LEFT = 62, RIGHT = 16, TOP = 18, BOTTOM = 46;

export function rooflinePlot(result, texts) {
  const points = [
    ["prefill", result.prefill],
    ["decode", result.decode],
  ];
  const intensities = [result.ridge, ...points.map(([, one]) => one.intensity)];
  const lowX = Math.floor(Math.log10(Math.min(...intensities, 1)));
  const highX = Math.ceil(Math.log10(Math.max(...intensities) * 2));
  const peak = result.flops_per_s;
  const highY = Math.log10(peak) + 0.25;
  const lowY = Math.log10(10 ** lowX * result.bytes_per_s);
  const x = (value) =>
    LEFT + ((Math.log10(value) - lowX) / (highX - lowX)) * (WIDTH - LEFT - RIGHT);
  const y = (value) =>
    HEIGHT - BOTTOM - ((Math.log10(value) - lowY) / (highY - lowY)) * (HEIGHT - TOP - BOTTOM);
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "roofline" });
  plot.append(svg("title", {}, `${texts.roofline}: ${describe(points, texts)}`));
  for (let power = lowX; power <= highX; power++) {
    plot.append(
      svg("line", { class: "roofline__grid", x1: x(10 ** power), x2: x(10 ** power), y1: TOP, y2: HEIGHT - BOTTOM }),
      svg("text", { x: x(10 ** power), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, tick(power)),
    );
  }
  for (let power = Math.ceil(lowY); power <= highY; power++) {
    plot.append(
      svg("line", { class: "roofline__grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(10 ** power), y2: y(10 ** power) }),
      svg("text", { x: LEFT - 6, y: y(10 ** power) + 4, "text-anchor": "end" }, tick(power)),
    );
  }
  const roof = [[10 ** lowX, 10 ** lowX * result.bytes_per_s], [result.ridge, peak], [10 ** highX, peak]];
  plot.append(
    svg("polyline", { class: "roofline__roof", points: roof.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }),
    svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, texts.intensity),
    svg("text", { x: 14, y: TOP - 4, "text-anchor": "start" }, texts.performance),
    svg("text", { x: x(result.ridge), y: y(peak) - 7, "text-anchor": "middle" }, digits(result.ridge)),
  );
  for (const [name, one] of points) {
    const reached = one.flops / one.time_s;
    const right = x(one.intensity) > WIDTH * 0.7;
    plot.append(
      svg("circle", { class: `roofline__${name}`, cx: x(one.intensity), cy: y(reached), r: 6 }),
      svg("text", {
        class: `roofline__label roofline__${name}`,
        x: x(one.intensity) + (right ? -10 : 10),
        y: y(reached) + 18,
        "text-anchor": right ? "end" : "start",
      }, texts[name]),
    );
  }
  return plot;
}

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const tick = (power) =>
  `10${power < 0 ? "⁻" : ""}${[...String(Math.abs(power))].map((one) => SUPERSCRIPTS[one]).join("")}`;

const describe = (points, texts) =>
  points.map(([name, one]) => `${texts[name]} ${digits(one.intensity)} FLOP/B`).join(", ");
