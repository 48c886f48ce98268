// <lab-figure>: turns a figure's poster into a live chart when the reader touches it.
//
// A custom element, so that it comes to life however it got into the page, instant navigation
// included. State: `chosen` (machine, variant) and `step`; the picture is a function of them.

import { draw } from "./chart.js";
import * as state from "./state.js";
import { fill } from "./table.js";

const PLAY_MS = 700;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

class LabFigure extends HTMLElement {
  connectedCallback() {
    const { figure, src, root, machine, variant } = this.dataset;
    this.name = figure.split(".").pop();
    this.folder = new URL(src, document.baseURI);
    this.root = new URL(root, document.baseURI);
    this.usual = { machine, variant };
    this.chosen = { machine, variant };
    this.stage = this.querySelector(".lab-stage");
    this.live = this.querySelector(".lab-live");
    this.slider = this.querySelector('input[type="range"]');
    this.step = this.slider ? Number(this.slider.value) - 1 : 0;

    this.life = new AbortController();
    const { signal } = this.life;
    const on = (type, handler, options) =>
      this.addEventListener(type, handler, { signal, ...options });
    for (const type of ["pointerenter", "touchstart", "focusin"]) {
      on(type, () => this.wake(), { once: true, passive: true });
    }
    on("click", (event) => {
      const button = event.target.closest("[data-action]");
      if (button) this.act(button.dataset.action);
    });
    on("input", (event) => {
      if (event.target === this.slider) this.go(Number(this.slider.value) - 1);
    });
    on("change", (event) => {
      const name = event.target.dataset.pick;
      if (name) this.pick({ ...this.chosen, [name]: event.target.value });
    });
    on("keydown", (event) => this.key(event));
    on("toggle", (event) => this.opened(event.target), { capture: true });

    this.paletteWatch = new MutationObserver(() => this.redraw());
    this.paletteWatch.observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
    this.sizeWatch = new ResizeObserver(() => this.resized());
    this.sizeWatch.observe(this.stage);
    this.showLine(this.querySelector(".lab-code-pane"), "auto");
    this.restore();
  }

  disconnectedCallback() {
    this.pause();
    this.life.abort();
    this.paletteWatch.disconnect();
    this.sizeWatch.disconnect();
    clearTimeout(this.resizing);
    this.drawing = undefined; // whatever is being drawn is too late
    this.chart?.finalize();
    this.chart = undefined;
  }

  // ---- state ------------------------------------------------------------------------------

  // Take up what the address asks for.
  restore() {
    const { step, ...wanted } = state.read(this.name);
    const known = ([key, value]) =>
      [...(this.querySelector(`[data-pick="${key}"]`)?.options ?? [])].some((o) => o.value === value);
    const chosen = { ...this.chosen, ...Object.fromEntries(Object.entries(wanted).filter(known)) };
    if (this.slider && /^\d+$/.test(step ?? "")) this.step = Number(step) - 1;
    const differs = Object.keys(chosen).some((key) => chosen[key] !== this.usual[key]);
    if (differs) this.pick(chosen);
    else if (step !== undefined) this.wake();
  }

  remember() {
    const changed = (key) => (this.chosen[key] === this.usual[key] ? null : this.chosen[key]);
    const step = this.slider && this.step !== this.payload.start ? String(this.step + 1) : null;
    state.write(this.name, { step, machine: changed("machine"), variant: changed("variant") });
  }

  pick(chosen) {
    this.pause();
    this.chosen = chosen;
    for (const select of this.querySelectorAll("[data-pick]")) {
      select.value = chosen[select.dataset.pick];
    }
    this.awake = undefined;
    return this.wake();
  }

  // Fetch the payload of what is chosen, then draw; once until something else is picked.
  wake() {
    this.awake ??= this.load(this.chosen).catch((error) => {
      this.awake = undefined;
      this.fail(error);
    });
    return this.awake;
  }

  async load(chosen) {
    const { machine, variant } = chosen;
    const file = new URL(`${machine}${variant ? `.${variant}` : ""}.json`, this.folder);
    const response = await fetch(file);
    if (!response.ok) throw new Error(`${file}: ${response.status}`);
    const payload = await response.json();
    if (chosen !== this.chosen || !this.isConnected) return;
    const first = !this.payload;
    this.payload = payload;
    this.describe(first);
    if (this.slider) this.go(this.step);
    else if (!first) this.remember();
    await this.redraw(true);
  }

  fail(error) {
    console.error(error);
    const note = document.createElement("p");
    note.className = "lab-failed";
    note.textContent = this.dataset.failed;
    this.querySelector(".lab-failed")?.remove();
    this.stage.after(note);
  }

  // ---- words ------------------------------------------------------------------------------

  describe(first) {
    const { payload } = this;
    if (first && payload.machine === this.usual.machine && payload.variant === (this.usual.variant || null)) {
      return; // the page was built with these words
    }
    const say = (selector, text) => {
      const element = this.querySelector(selector);
      if (element) element.textContent = text;
    };
    say(".lab-title", payload.title);
    say(".lab-notice", payload.notice);
    say(".lab-kind", payload.kind_word);
    say(".lab-source code", payload.command);
    say(".lab-source a", payload.parquet);
    this.querySelector(".lab-kind").dataset.kind = payload.kind;
    this.querySelector(".lab-source a")?.setAttribute("href", new URL(payload.parquet, this.root));
    const pane = this.querySelector(".lab-code-pane .highlight");
    if (pane) pane.innerHTML = payload.code;
    if (this.slider) this.slider.max = payload.steps.length;
    const data = this.querySelector(".lab-data");
    if (data?.open) this.opened(data);
  }

  async opened(details) {
    if (!details.open || !details.matches(".lab-data")) return;
    await this.wake();
    const place = details.querySelector(".lab-table");
    if (this.payload) fill(place, this.payload, document.documentElement.lang, this.dataset.rows);
  }

  // ---- steps ------------------------------------------------------------------------------

  key(event) {
    if (!this.slider || event.altKey || event.ctrlKey || event.metaKey) return;
    const { target, key } = event;
    if (target.closest("select, summary, a, .lab-code, .lab-table")) return;
    const actions = { ArrowLeft: "previous", ArrowRight: "next", Home: "first", End: "last" };
    if (actions[key]) this.act(actions[key]);
    else if (key === " " && !target.closest("button")) this.act("play");
    else return;
    event.preventDefault();
  }

  async act(action) {
    if (action === "play") return this.timer ? this.pause() : this.play();
    this.pause();
    await this.wake();
    if (!this.payload) return;
    const last = this.payload.steps.length - 1;
    this.go({ first: 0, previous: this.step - 1, next: this.step + 1, last }[action]);
  }

  async play() {
    await this.wake();
    if (!this.payload || this.timer) return;
    const last = this.payload.steps.length - 1;
    if (this.step >= last) this.go(0);
    this.sayPlaying(true);
    this.timer = setInterval(() => {
      this.go(this.step + 1);
      if (this.step >= last) this.pause();
    }, PLAY_MS);
  }

  pause() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = undefined;
    this.sayPlaying(false);
  }

  sayPlaying(playing) {
    const button = this.querySelector('[data-action="play"]');
    button.title = playing ? this.dataset.pause : this.dataset.play;
    button.setAttribute("aria-label", button.title);
    this.toggleAttribute("playing", playing);
    // read out where playing ended, not every step on the way
    this.querySelector(".lab-narration").ariaLive = playing ? "off" : "polite";
  }

  go(step) {
    const { payload } = this;
    if (!payload) {
      this.step = step; // the slider was moved before the payload came
      return this.wake();
    }
    const count = payload.steps.length;
    this.step = Math.min(Math.max(step, 0), count - 1);
    const { text, line, lines } = payload.steps[this.step];
    this.slider.value = this.step + 1;
    const position = this.dataset.position.replace("{n}", this.step + 1).replace("{count}", count);
    this.slider.ariaValueText = position;
    this.querySelector("output").textContent = position;
    const narration = this.querySelector(".lab-narration");
    if (narration.textContent !== text) narration.textContent = text;
    this.mark(line, new Set(lines));
    this.chart?.view.signal("step", this.step).runAsync();
    this.remember();
  }

  mark(now, ran) {
    const pane = this.querySelector(".lab-code-pane");
    if (!pane) return;
    for (const line of pane.querySelectorAll(".line")) {
      const number = Number(line.dataset.line);
      line.classList.toggle("ran", ran.has(number));
      line.classList.toggle("now", number === now);
    }
    this.showLine(pane, calm.matches || this.timer ? "auto" : "smooth");
  }

  // Scroll the pane, never the page, to the line that ran.
  showLine(pane, behavior) {
    const line = pane?.querySelector(".now");
    if (!line) return;
    const top = line.offsetTop, bottom = top + line.offsetHeight;
    if (top < pane.scrollTop + 24 || bottom > pane.scrollTop + pane.clientHeight - 24) {
      pane.scrollTo({ top: top - pane.clientHeight / 2, behavior });
    }
  }

  // ---- chart ------------------------------------------------------------------------------

  resized() {
    clearTimeout(this.resizing);
    if (this.payload && Math.abs(this.stage.clientWidth - (this.drawnWidth ?? 0)) > 1) {
      this.resizing = setTimeout(() => this.redraw(), 100);
    }
  }

  // Draw into a fresh element and swap, so that nothing flickers. Hidden figures wait.
  async redraw() {
    const width = this.stage.clientWidth;
    if (!this.payload || !width) return;
    const turn = (this.drawing = {});
    const element = document.createElement("div");
    element.className = "lab-live";
    try {
      const chart = await draw(element, this.payload, this.step, width);
      if (this.drawing !== turn) return chart.finalize();
      this.chart?.finalize();
      this.chart = chart;
      this.drawnWidth = width;
      this.live.replaceWith(element);
      this.live = element;
      this.stage.classList.add("is-live");
      if (this.slider) chart.view.signal("step", this.step).runAsync();
    } catch (error) {
      if (this.drawing === turn) this.fail(error);
    }
  }
}

if (!customElements.get("lab-figure")) customElements.define("lab-figure", LabFigure);
