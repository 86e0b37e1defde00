"use strict";
// Draws the figures of the page and its timeline. Sets data-drawn on <html> to the number of figures drawn, and
// data-errors to the number of errors, so that a test can tell.

const root = document.documentElement;
root.dataset.errors = "0";
window.addEventListener("error", () => { root.dataset.errors = String(Number(root.dataset.errors) + 1); });

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const CONFIG = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

/** Colours that follow the reader's scheme, laid over a figure's own layout. */
function themed(layout) {
  const theme = structuredClone(layout);
  theme.paper_bgcolor = theme.plot_bgcolor = "rgba(0,0,0,0)";
  theme.font = { ...theme.font, color: colour("--soft") };
  theme.hoverlabel = {
    bgcolor: colour("--card"), bordercolor: colour("--rule"), align: "left", namelength: -1,
    font: { color: colour("--ink"), size: 12.5, family: theme.font.family },
  };
  for (const key of Object.keys(theme).filter((k) => /^[xy]axis\d*$/.test(k))) {
    Object.assign(theme[key], { gridcolor: colour("--grid"), linecolor: colour("--rule"), automargin: true });
  }
  return theme;
}

const figures = [...document.querySelectorAll(".plot[data-figure]")].map((div) => ({ div, spec: read(div.dataset.figure) }));

function drawAll() {
  return Promise.all(figures.map(({ div, spec }) => Plotly.react(div, spec.data, themed(spec.layout), CONFIG)));
}

// -- the timeline -----------------------------------------------------------------------------------------------

class Timeline {
  constructor(data, div, canvas, output, buttons) {
    Object.assign(this, { data, div, canvas, output, buttons });
    this.colours = data.colours;
    this.rows = data.rows.map(() => ({ first: 0, last: 0 }));
    data.row.forEach((row, i) => {
      if (this.rows[row].last === 0) this.rows[row].first = i;
      this.rows[row].last = i + 1;
    });
    this.view = [...data.window];
    this.longest = data.length.reduce((a, b) => Math.max(a, b), 1);
    this.slots = data.rows.map((row, i) => i).filter((i) => data.rows[i].kind === "slot");
  }

  /** Calls paint(first, beyond, segment) with column numbers for what a row shows between `from` and `to` (ms). */
  scan(row, from, to, columns, paint) {
    const { start, length } = this.data;
    const step = (to - from) / columns;
    let low = this.rows[row].first, high = this.rows[row].last;
    const end = high;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] + this.longest < from) low = middle + 1; else high = middle;
    }
    for (let i = low; i < end && start[i] < to; i++) {
      if (start[i] + length[i] <= from) continue;
      const first = Math.max(0, Math.ceil((start[i] - from) / step - 0.5));
      const beyond = Math.min(columns, Math.ceil((start[i] + length[i] - from) / step - 0.5));
      if (beyond > first) paint(first, beyond, i);
    }
  }

  /** Slots with a trajectory, as a share of those the settings give: the mean over [from, to] (ms). */
  busy(from, to) {
    const { start, length } = this.data;
    let sum = 0;
    for (const row of this.slots) {
      for (let i = this.rows[row].first; i < this.rows[row].last; i++) {
        sum += Math.max(0, Math.min(to, start[i] + length[i]) - Math.max(from, start[i]));
      }
    }
    return sum / ((to - from) * this.data.capacity);
  }

  words(i) {
    const d = this.data, kind = d.rows[d.row[i]].kind, label = d.rows[d.row[i]].label;
    const time = `${(d.start[i] / 1000).toFixed(2)} to ${((d.start[i] + d.length[i]) / 1000).toFixed(2)} s`;
    if (kind === "learner") return `learner, iteration ${d.id[i]}: ${d.tokens[i]} trajectories<br>${time}`;
    if (kind === "evaluation") return `held-out evaluation of version ${d.id[i]}<br>${time}`;
    const again = d.attempt[i] ? `, attempt ${d.attempt[i]}` : "";
    return `${label}: trajectory ${d.id[i]}${again}<br>version ${d.version[i]}, ${d.tokens[i]} tokens<br>${time}`;
  }

  image() {
    const [from, to] = this.view.map((t) => t * 1000);
    const columns = Math.max(300, Math.min(1400, Math.round(this.div.clientWidth || 1200)));
    const z = [], text = [];
    for (let row = 0; row < this.rows.length; row++) {
      const colours = new Array(columns).fill(null), words = new Array(columns).fill("idle");
      this.scan(row, from, to, columns, (first, beyond, i) => {
        colours.fill(this.data.version[i] % this.colours.length, first, beyond);
        words.fill(this.words(i), first, beyond);
      });
      z.push(colours);
      text.push(words);
    }
    const dx = (to - from) / columns / 1000;
    return { z, text, x0: from / 1000 + dx / 2, dx };
  }

  layout() {
    const rows = this.data.rows, lanes = [...new Set(this.slots.map((i) => rows[i].lane))];
    const middle = (lane) => {
      const of = this.slots.filter((i) => rows[i].lane === lane);
      return (of[0] + of[of.length - 1]) / 2;
    };
    const line = (x, dash) => ({
      type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour("--bad"), width: 1.5, dash },
    });
    const borders = this.slots.filter((i) => i > 1 && rows[i].lane !== rows[i - 1].lane).concat([1, rows.length - 1]);
    const note = (x, text) => ({
      x, text, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, font: { size: 11, color: colour("--bad") },
    });
    const marks = [...this.data.sessions.map((x) => [x, "resumed", "solid"]), ...this.data.incidents.map(([x, t]) => [x, t, "dot"])];
    const seen = marks.filter(([x]) => x >= this.view[0] && x <= this.view[1]);
    return themed({
      height: Math.max(300, Math.min(620, 130 + rows.length * 7)),
      margin: { l: 76, r: 14, t: 22, b: 44 }, hovermode: "closest", dragmode: "zoom",
      font: { family: "system-ui, -apple-system, 'Segoe UI', sans-serif", size: 12 },
      xaxis: { title: { text: "run time (s)", standoff: 8 }, range: this.view, showgrid: false, zeroline: false },
      yaxis: {
        fixedrange: true, showgrid: false, zeroline: false, range: [-0.5, rows.length - 0.5], ticks: "",
        tickvals: [0, ...lanes.map(middle), rows.length - 1], ticktext: ["evaluation", ...lanes.map((l) => `lane ${l}`), "learner"],
      },
      shapes: [
        ...borders.map((i) => ({
          type: "line", x0: 0, x1: 1, xref: "paper", y0: i - 0.5, y1: i - 0.5, line: { color: colour("--card"), width: 3 },
        })),
        ...seen.map(([x, , dash]) => line(x, dash)),
      ],
      annotations: seen.map(([x, text]) => note(x, text)),
    });
  }

  draw() {
    const stops = this.colours.flatMap((c, i) => [[i / this.colours.length, c], [(i + 1) / this.colours.length, c]]);
    const trace = {
      type: "heatmap", ...this.image(), zmin: -0.5, zmax: this.colours.length - 0.5, colorscale: stops, showscale: false,
      hoverongaps: false, hovertemplate: "%{text}<extra></extra>", ygap: this.rows.length < 90 ? 1 : 0,
    };
    const layout = this.layout();
    layout.plot_bgcolor = colour("--idle");
    const share = this.busy(this.view[0] * 1000, this.view[1] * 1000);
    const width = this.view[1] - this.view[0];
    this.output.textContent = `${width < 10 ? width.toFixed(1) : width.toFixed(0)} s shown; slots busy ${(100 * share).toFixed(1)} %`;
    this.overview();
    return Plotly.react(this.div, [trace], layout, { ...CONFIG, modeBarButtonsToRemove: [...CONFIG.modeBarButtonsToRemove, "zoomIn2d", "zoomOut2d"] });
  }

  overview() {
    const width = this.canvas.clientWidth || 1000, height = this.rows.length;
    const pixels = new ImageData(width, height);
    const shades = this.colours.map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
    const buffer = new Uint32Array(pixels.data.buffer);
    const packed = shades.map(([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0);
    for (let row = 0; row < height; row++) {
      const offset = (height - 1 - row) * width;
      this.scan(row, 0, this.data.end * 1000, width, (first, beyond, i) => {
        buffer.fill(packed[this.data.version[i] % packed.length], offset + first, offset + beyond);
      });
    }
    const image = new OffscreenCanvas(width, height);
    image.getContext("2d").putImageData(pixels, 0, 0);
    Object.assign(this.canvas, { width, height: 54 });
    const pen = this.canvas.getContext("2d");
    pen.fillStyle = colour("--idle");
    pen.fillRect(0, 0, width, 54);
    pen.drawImage(image, 0, 0, width, 54);
    const [left, right] = this.view.map((t) => t / this.data.end * width);
    pen.fillStyle = colour("--card");
    pen.globalAlpha = 0.55;
    pen.fillRect(0, 0, left, 54);
    pen.fillRect(right, 0, width - right, 54);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 2;
    pen.strokeRect(Math.max(1, left), 1, Math.max(4, Math.min(right, width - 1) - Math.max(1, left)), 52);
  }

  show(from, to) {
    const width = Math.min(Math.max(to - from, 0.02), this.data.end);
    const start = Math.min(Math.max(0, from), this.data.end - width);
    this.view = [start, start + width];
    for (const button of this.buttons) button.setAttribute("aria-pressed", "false");
    return this.draw();
  }

  listen() {
    const { end, window: first } = this.data;
    const deeds = {
      steady: () => this.show(...first),
      whole: () => this.show(0, end),
      earlier: () => this.shift(-0.6), later: () => this.shift(0.6),
      closer: () => this.zoom(0.5), wider: () => this.zoom(2),
    };
    for (const button of this.buttons) {
      button.addEventListener("click", () => {
        deeds[button.dataset.deed]();
        if (["steady", "whole"].includes(button.dataset.deed)) button.setAttribute("aria-pressed", "true");
      });
    }
    this.div.on("plotly_relayout", (change) => {
      if ("xaxis.range[0]" in change) this.show(change["xaxis.range[0]"], change["xaxis.range[1]"]);
      else if (change["xaxis.autorange"]) this.show(0, end);
    });
    const centre = (event) => {
      const box = this.canvas.getBoundingClientRect(), width = this.view[1] - this.view[0];
      const at = (event.clientX - box.left) / box.width * end;
      this.show(at - width / 2, at + width / 2);
    };
    this.canvas.addEventListener("pointerdown", (event) => { this.canvas.setPointerCapture(event.pointerId); centre(event); });
    this.canvas.addEventListener("pointermove", (event) => { if (event.buttons) centre(event); });
  }

  shift(share) {
    const by = share * (this.view[1] - this.view[0]);
    this.show(this.view[0] + by, this.view[1] + by);
  }

  zoom(factor) {
    const half = factor * (this.view[1] - this.view[0]) / 2, middle = (this.view[0] + this.view[1]) / 2;
    this.show(middle - half, middle + half);
  }
}

let timeline = null;
if (document.getElementById("timeline-data")) {
  const by = (id) => document.getElementById(id);
  const buttons = [...document.querySelectorAll("#timeline-bar button")];
  timeline = new Timeline(read("timeline-data"), by("timeline"), by("timeline-overview"), by("timeline-output"), buttons);
}

async function start() {
  await drawAll();
  if (timeline) { await timeline.draw(); timeline.listen(); }
  root.dataset.drawn = String(document.querySelectorAll(".plot .main-svg:first-child").length);
}

const redraw = () => { drawAll(); if (timeline) timeline.draw(); };
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let waiting = 0;
window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => timeline && timeline.draw(), 150); });
start();
