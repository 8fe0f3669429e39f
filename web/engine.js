// The engine page: what the server's counters say, once a second while somebody can see it.

import { ApiError } from "./api.js";
import { drawHeatMap, Sparkline } from "./charts.js";
import { byId, h } from "./dom.js";
import { bytes, count, percent, rate, seconds } from "./format.js";

const kPeriod = 1;  // seconds
const kLength = 120;  // samples on a chart, at most
const kShortest = 30;  // and the width that fewer are drawn to
const kGap = 3;  // seconds without a sample, after which a line is not drawn through
const kMinute = 60;

// Figures from a sample and the one before, {now, stats}; null without.
const perSecond = (read) => ({ now, stats }, before) => (
  before ? (read(stats) - read(before.stats)) / (now - before.now) : null);

const kFigures = [
  { name: "Output", unit: "tokens/s", value: perSecond((s) => s.tokens.output) },
  { name: "New prompt", unit: "tokens/s", value: perSecond((s) => s.tokens.prompt_computed) },
  { name: "Cached prompt", unit: "tokens/s", value: perSecond((s) => s.tokens.prompt_cached) },
  { name: "Running", unit: "requests", show: count, value: ({ stats }) => stats.requests.running,
    note: ({ requests }) => `at most ${count(requests.max_num_seqs)}` +
      (requests.paused ? `, ${count(requests.paused)} paused` : "") },
  { name: "Waiting", unit: "requests", show: count,
    value: ({ stats }) => stats.requests.waiting,
    note: ({ requests }) => requests.max_waiting ? `at most ${count(requests.max_waiting)}` : "" },
  { name: "Batch", unit: "rows per step",
    value: ({ stats }, before) => {
      const steps = before ? stats.steps.count - before.stats.steps.count : 0;
      return steps > 0 ? (stats.steps.rows - before.stats.steps.rows) / steps : before ? 0 : null;
    } },
  { name: "Steps", unit: "per second", value: perSecond((s) => s.steps.count) },
  { name: "KV cache", unit: "used", show: percent,
    value: ({ stats: { kv } }) => kv.blocks_total > 0 ? kv.blocks_used / kv.blocks_total : 0,
    note: ({ kv }) => `${count(kv.blocks_used)} of ${count(kv.blocks_total)} blocks of ` +
      `${kv.block_size} tokens; ${bytes(kv.bytes)} reserved` },
];

const kLatencies = [
  ["ttft", "Time to first token"], ["itl", "Between tokens"], ["e2e", "Whole request"]];

export class EnginePage {
  samples = [];  // {now, stats}, oldest first
  timer = null;
  isShown = false;
  awaySince = null;

  constructor(api, { onKeyNeeded, onChange }) {
    Object.assign(this, { api, onKeyNeeded, onChange });
    this.cards = kFigures.map((figure) => {
      const value = h("strong", {}, "–");
      const peak = h("span", { class: "peak" });
      const note = h("p", { class: "note" });
      const chart = new Sparkline(`${figure.name}, ${figure.unit}`, kShortest);
      const card = h("section", { class: "card", "aria-label": figure.name },
        h("h2", {}, figure.name), h("p", { class: "value" }, value, ` ${figure.unit}`, peak),
        chart.root, note);
      return { figure, value, peak, note, chart, card };
    });
    byId("figures").append(...this.cards.map(({ card }) => card));
    this.canvas = byId("experts-canvas");
    this.canvas.addEventListener("pointermove", (event) => this.nameExpert(event));
    this.canvas.addEventListener("pointerleave", () => { byId("expert").textContent = ""; });
    byId("experts-span").addEventListener("change", () => this.showExperts());
    document.addEventListener("visibilitychange", () => this.schedule());
  }

  setShown(isShown) {
    this.isShown = isShown;
    this.schedule();
  }

  // Polls from now on, or not any more.
  schedule() {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.isShown && !document.hidden) this.poll();
  }

  async poll() {
    const timer = this.timer = setTimeout(() => {}, 0);  // tells this round from a later one
    let wait = kPeriod;
    try {
      this.add(await this.api.stats());
      this.setAway(null);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.setAway(error);
      wait = 2 * kPeriod;
      if (error.needsKey && !await this.onKeyNeeded()) return;
    }
    if (this.timer !== timer) return;
    this.timer = setTimeout(() => this.poll(), wait * 1000);
  }

  setAway(error) {
    if (error) this.awaySince ??= new Date();
    else this.awaySince = null;
    byId("engine").classList.toggle("away", error !== null);
    const notice = byId("engine-away");
    notice.hidden = error === null;
    if (error) {
      notice.textContent = `${error.message} Trying again since ` +
        `${this.awaySince.toLocaleTimeString()}; the figures are from before.`;
    }
    this.onChange(error);
  }

  add(stats) {
    const last = this.samples.at(-1);
    if (last && stats.uptime_s < last.stats.uptime_s) this.samples = [];  // another server
    this.samples.push({ now: performance.now() / 1000, stats });
    this.samples = this.samples.slice(-kLength - 1);
    this.show();
  }

  show() {
    const { stats } = this.samples.at(-1);
    this.showServer(stats);
    for (const { figure, value, peak, note, chart } of this.cards) {
      const values = this.valuesOf(figure);
      const last = values.at(-1);
      const show = figure.show ?? rate;
      value.textContent = last === null ? "–" : show(last);
      peak.textContent = last === null ? "" : `peak ${show(Math.max(...values))}`;
      note.textContent = figure.note?.(stats) ?? "";
      chart.update(values, `${value.textContent} ${figure.unit}`);
    }
    this.showLatencies(stats.latency_s);
    this.showExperts();
  }

  valuesOf({ value }) {
    return this.samples.map((sample, i) => {
      const before = this.samples[i - 1];
      if (before && sample.now - before.now > kGap) return null;
      return value(sample, before);
    }).slice(-kLength);
  }

  showServer(stats) {
    const facts = [
      ["Model", stats.model], ["Version", stats.version], ["Numerics", stats.numerics_id],
      ["Kernels", stats.isa], ["Threads", count(stats.threads)],
      ["Context", `${count(stats.max_model_len)} tokens`], ["Up for", seconds(stats.uptime_s)],
    ];
    byId("server").replaceChildren(
      ...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value)))));
  }

  showLatencies(latencies) {
    const cell = (value) => h("td", {}, Number.isFinite(value) ? seconds(value) : "–");
    byId("latencies").replaceChildren(...kLatencies.map(([key, name]) => (
      h("tr", {}, h("th", { scope: "row" }, name),
        ...["p50", "p90", "p99"].map((p) => cell(latencies?.[key]?.[p]))))));
  }

  // Tokens by layer and expert: since the start, or of the last minute.
  experts() {
    const { now, stats } = this.samples.at(-1);
    if (byId("experts-span").value === "start") return stats.experts;
    const { stats: before } = this.samples.find((sample) => now - sample.now <= kMinute);
    return stats.experts.map(({ layer, tokens }, i) => (
      { layer, tokens: tokens.map((n, expert) => n - (before.experts[i]?.tokens[expert] ?? 0)) }));
  }

  showExperts() {
    if (this.samples.length === 0) return;
    const layers = this.shownExperts = this.experts();
    byId("experts").hidden = layers.length === 0;
    if (layers.length === 0) return;
    drawHeatMap(this.canvas, layers.map(({ tokens }) => tokens));
    this.canvas.style.setProperty("--rows", String(layers.length));
    byId("experts-table").replaceChildren(...layers.map(({ layer, tokens }) => {
      const sum = tokens.reduce((total, n) => total + n, 0);
      const most = Math.max(...tokens);
      const load = sum > 0 ? (most * tokens.length / sum).toFixed(2) + " × mean" : "–";
      return h("tr", {}, h("th", { scope: "row" }, String(layer)), h("td", {}, count(sum)),
        h("td", {}, sum > 0 ? String(tokens.indexOf(most)) : "–"), h("td", {}, load),
        h("td", {}, count(tokens.filter((n) => n === 0).length)));
    }));
  }

  nameExpert({ offsetX, offsetY }) {
    const { clientWidth, clientHeight, width } = this.canvas;
    const row = this.shownExperts[Math.floor(offsetY / clientHeight * this.shownExperts.length)];
    const expert = Math.floor(offsetX / clientWidth * width);
    if (row?.tokens[expert] === undefined) return;
    byId("expert").textContent =
      `layer ${row.layer}, expert ${expert}: ${count(row.tokens[expert])} tokens`;
  }
}
