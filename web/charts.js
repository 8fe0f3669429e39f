// Small charts, drawn by hand.

import { svg } from "./dom.js";

const kWidth = 240;
const kHeight = 48;

// The last values of one figure; null breaks the line. Fewer than `shortest` fill the right side.
export class Sparkline {
  constructor(label, shortest) {
    this.label = label;
    this.shortest = shortest;
    this.line = svg("path", { class: "line" });
    this.area = svg("path", { class: "area" });
    this.root = svg("svg", { class: "sparkline", role: "img", "aria-label": label,
                             viewBox: `0 0 ${kWidth} ${kHeight}`, preserveAspectRatio: "none" },
                    this.area, this.line);
  }

  update(values, text) {
    const top = Math.max(...values.filter((value) => value !== null), 1e-9);
    const length = Math.max(this.shortest, values.length);
    const step = kWidth / (length - 1);
    const offset = length - values.length;
    let line = "";
    let area = "";
    let start = null;
    values.forEach((value, i) => {
      if (value === null) return;
      const x = ((offset + i) * step).toFixed(1);
      const y = (kHeight - 2 - (value / top) * (kHeight - 6)).toFixed(1);
      const begins = i === 0 || values[i - 1] === null;
      const ends = i === values.length - 1 || values[i + 1] === null;
      if (begins) start = x;
      line += `${begins ? "M" : "L"}${x} ${y}`;
      area += `${begins ? `M${x} ${kHeight}` : ""}L${x} ${y}${ends ? `L${x} ${kHeight}Z` : ""}`;
      if (begins && ends) line += `h0.1`;  // a lone value is a dot
    });
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
    this.root.setAttribute("aria-label", `${this.label}: ${text}`);
  }
}

// Rows of numbers as a field of colour: nothing at 0, the full colour from twice the row's mean on.
// The colours are those that the style sheet gives the canvas.
export function drawHeatMap(canvas, rows) {
  const columns = Math.max(1, ...rows.map((row) => row.length));
  canvas.width = columns;
  canvas.height = Math.max(1, rows.length);
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(canvas).color;
  rows.forEach((row, y) => {
    const mean = row.reduce((sum, value) => sum + value, 0) / row.length;
    row.forEach((value, x) => {
      context.globalAlpha = mean > 0 ? Math.min(1, value / mean / 2) : 0;
      context.fillRect(x, y, 1, 1);
    });
  });
}
